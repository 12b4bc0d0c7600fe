"""How a run is split over processes: each axis in a file of its own, applied from outside by `engine.build`."""
