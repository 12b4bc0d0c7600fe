"""Look of the pages: Gradio's base theme on system fonts, our stylesheet and scripts; nothing from another host."""

from importlib.resources import files

import gradio as gr

SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Cascadia Code", "Roboto Mono", "Noto Sans Mono", "monospace")

# Gradio's own variables, pointed at ours (style.css), so that light and dark are decided in one place.
VARIABLES = {
    "body_background_fill": "var(--paper)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--quiet)",
    "background_fill_primary": "var(--surface)",
    "background_fill_secondary": "var(--paper)",
    "border_color_primary": "var(--edge)",
    "border_color_accent": "var(--accent)",
    "color_accent_soft": "var(--accent-soft)",
    "block_background_fill": "transparent",
    "block_border_width": "0px",
    "block_padding": "0px",
    "block_shadow": "none",
    "block_label_shadow": "none",
    "block_info_text_size": "13px",
    "block_title_text_size": "14px",
    "block_title_text_weight": "550",
    "block_title_padding": "0px",
    "color_accent": "var(--accent)",
    "input_border_width": "1px",
    "input_shadow": "none",
    "input_shadow_focus": "none",
    "input_radius": "8px",
    "input_text_size": "14.5px",
    "button_border_width": "1px",
    "button_primary_border_color": "transparent",
    "button_large_text_weight": "550",
    "button_medium_text_weight": "550",
    "button_large_radius": "8px",
    "button_medium_radius": "8px",
    "block_label_background_fill": "var(--surface)",
    "block_label_text_color": "var(--quiet)",
    "block_title_text_color": "var(--ink)",
    "block_info_text_color": "var(--quiet)",
    "input_background_fill": "var(--field)",
    "input_background_fill_focus": "var(--field)",
    "input_border_color": "var(--edge-strong)",
    "input_border_color_focus": "var(--accent)",
    "input_placeholder_color": "var(--quiet)",
    "button_primary_background_fill": "var(--accent)",
    "button_primary_background_fill_hover": "var(--accent-strong)",
    "button_primary_text_color": "var(--on-accent)",
    "button_primary_text_color_hover": "var(--on-accent)",
    "button_secondary_background_fill": "var(--surface)",
    "button_secondary_background_fill_hover": "var(--hover)",
    "button_secondary_border_color": "var(--edge-strong)",
    "button_secondary_text_color": "var(--ink)",
    "checkbox_background_color": "var(--field)",
    "checkbox_background_color_selected": "var(--accent)",
    "checkbox_border_color": "var(--edge-strong)",
    "checkbox_border_color_selected": "var(--accent)",
    "checkbox_label_background_fill": "var(--surface)",
    "checkbox_label_background_fill_selected": "var(--accent-soft)",
    "checkbox_label_text_color": "var(--ink)",
    "checkbox_label_text_color_selected": "var(--ink)",
    "checkbox_label_border_color": "var(--edge-strong)",
    "slider_color": "var(--accent)",
    "link_text_color": "var(--accent)",
    "panel_background_fill": "var(--paper)",
    "error_text_color": "var(--bad)",
}


def theme() -> gr.themes.Base:
    """The theme; every colour is a variable of the stylesheet."""
    base = gr.themes.Base(font=list(SANS), font_mono=list(MONO), radius_size="md", spacing_size="md", text_size="md")
    names = {name for name in VARIABLES if not name.endswith("_dark")}
    return base.set(**VARIABLES, **{f"{name}_dark": VARIABLES[name] for name in names if hasattr(base, f"{name}_dark")})


def asset(name: str) -> str:
    """A text file of this package."""
    return files("studio.ui").joinpath("assets", name).read_text(encoding="utf-8")


def head() -> str:
    """Style and scripts, inline: there before the first paint, and unchanged by Gradio."""
    return f"<style>{asset('style.css')}</style><script>{asset('chart.js')}\n{asset('pages.js')}</script>"
