"""Small pages of our own beside Gradio's: they work without JavaScript, on a phone, in the dark, and load nothing."""

from html import escape

from starlette.responses import HTMLResponse

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_STYLE = """:root { --back: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #57606a; --line: #8c959f;
  --act: #1f5fbf; --bad: #b3261e; --link: #1f5fbf }
@media (prefers-color-scheme: dark) {
  :root { --back: #0e1116; --card: #171b22; --text: #e6e9ee; --soft: #a3adb8; --line: #6b7684;
    --act: #2f6fd0; --bad: #ff8a80; --link: #8cabff }
}
* { box-sizing: border-box }
body { margin: 0; min-height: 100vh; min-height: 100dvh; display: grid; place-items: center; padding: 1rem;
  background: var(--back); color: var(--text); font: 1rem/1.5 system-ui, sans-serif }
main { width: 100%; max-width: 22rem; background: var(--card); border-radius: 12px; padding: 1.75rem }
h1 { margin: 0 0 .25rem; font-size: 1.4rem }
p { margin: 0 0 1.25rem; color: var(--soft) }
label { display: block; margin-bottom: .35rem; font-weight: 600 }
input, button { width: 100%; font: inherit; border-radius: 8px; padding: .65rem .75rem; min-height: 44px }
input { border: 1px solid var(--line); background: transparent; color: inherit; margin-bottom: 1rem }
button { border: 0; background: var(--act); color: #fff; font-weight: 600; cursor: pointer }
:focus-visible { outline: 3px solid var(--act); outline-offset: 2px }
[role=alert] { color: var(--bad); font-weight: 600 }
a { color: var(--link); display: inline-block; padding: .3rem .9rem .3rem 0 }
"""


def page(title: str, heading: str, body: str, status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
    """One card in the middle; `body` is markup, title and heading are text."""
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} · Atelier</title>
<style>
{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(heading)}</h1>
{body}</main>
</body>
</html>
"""
    return HTMLResponse(text, status, {"Content-Security-Policy": _POLICY} | (headers or {}))
