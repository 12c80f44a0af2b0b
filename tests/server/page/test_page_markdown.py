"""What a model writes reaches the page as text, whatever it is; markdown is set as such, while it still grows."""

from __future__ import annotations

from browser import Browser
from paging import Open, ask, ended
from scripted import Scripted

from mmswap.runtime import Runtime

RENDER = """
const [text, steps] = arguments;
return import("/markdown.js").then(({ renderInto }) => {
  const node = document.createElement("div");
  for (let at = steps ? 0 : text.length; at <= text.length; at += 1) renderInto(node, text.slice(0, at));
  return node.innerHTML;
});
"""

HOSTILE = (
    '<img src="x" onerror="window.stray = 1"> <script>window.stray = 1</script> '
    "[a](javascript:window.stray=1) [b](data:text/html,x) ![c](https://example.org/track.png) "
    '[d](https://example.org/"onmouseover="x) `<b>`\n\n<iframe src="/"></iframe>\n\n'
    "```<i>\n</code><script>1</script>\n```"
)

SET = {
    "one line\nand another": "<p>one line<br>and another</p>",
    "# Title\ntext\n\n## Sub #": "<h3>Title</h3><p>text</p><h4>Sub</h4>",
    "a **bold** and *slanted*, __b__ _c_ ~~d~~": (
        "<p>a <strong>bold</strong> and <em>slanted</em>, <strong>b</strong> <em>c</em> <s>d</s></p>"
    ),
    "**bold with *slant* inside**": "<p><strong>bold with <em>slant</em> inside</strong></p>",
    "*slant with **bold** inside*": "<p><em>slant with <strong>bold</strong> inside</em></p>",
    "snake_case_name 2 * 3 * 4 ** **": "<p>snake_case_name 2 * 3 * 4 ** **</p>",
    r"\*not\* \`code\`": "<p>*not* `code`</p>",
    "`a*b*` and ``x ` y``": "<p><code>a*b*</code> and <code>x ` y</code></p>",
    "- a\n- b\n  - c\n  - d\n- e": "<ul><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ul>",
    "3. a\n4. b\n\ntext": '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>',
    "1. a\n   ```\n   x\n   ```\n2. b": '<ol><li>a<pre tabindex="0"><code>x</code></pre></li><li>b</li></ol>',
    "> quoted\n> more\n\n---": "<blockquote><p>quoted<br>more</p></blockquote><hr>",
    "```python\nif x:\n    y\n```\nafter": (
        '<pre data-language="python" tabindex="0"><code>if x:\n    y</code></pre><p>after</p>'
    ),
    "```\nnever closed\n\n# x": '<pre tabindex="0"><code>never closed\n\n# x</code></pre>',
    "| a | b |\n|---|:-:|\n| 1 | *2* |\n\nz": (
        '<div class="table"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
        "<tbody><tr><td>1</td><td><em>2</em></td></tr></tbody></table></div><p>z</p>"
    ),
    "see https://example.org/a_b_c(d). ok": (
        '<p>see <a href="https://example.org/a_b_c(d" target="_blank" rel="noopener noreferrer">'
        "https://example.org/a_b_c(d</a>). ok</p>"
    ),
    "[the *page*](https://example.org)": (
        '<p><a href="https://example.org" target="_blank" rel="noopener noreferrer">the <em>page</em></a></p>'
    ),
}


def test_what_a_model_writes_stays_text(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small, pieces=tuple(HOSTILE[at : at + 7] for at in range(0, len(HOSTILE), 7))))
    ask(page, '<b onclick="x">bold?</b>')
    shown = ended(page)
    for part in ('<img src="x" onerror="window.stray = 1">', "<script>window.stray = 1</script>", '<iframe src="/">'):
        assert part in shown
    kinds = "return [...new Set([...document.querySelectorAll('.answer .text *')].map(one => one.localName))].sort()"
    assert page.run(kinds) == ["a", "code", "p", "pre"]
    links = page.run("return [...document.querySelectorAll('.answer a')].map(one => one.protocol)")
    assert set(links) == {"https:"}
    attributes = """
        const all = [...document.querySelectorAll(".answer .text *")].flatMap((one) => one.getAttributeNames());
        return [...new Set(all)].sort();
    """
    assert page.run(attributes) == ["data-language", "href", "rel", "tabindex", "target"]
    assert page.run("return window.stray") is None
    assert page.find(".question .text").text == '<b onclick="x">bold?</b>'


def test_markdown_is_set(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small))
    wrong = {}
    for text, wanted in SET.items():
        whole, grown = page.run(RENDER, text, False), page.run(RENDER, text, True)
        if (whole, grown) != (wanted, wanted):
            wrong[text] = (whole, grown)
    assert wrong == {}


def test_blocks_that_have_not_changed_stay_while_an_answer_grows(page: Browser, opened: Open, small: Runtime) -> None:
    """A selection in the first paragraph was gone with the next word."""
    opened(Scripted(small))
    same = page.run("""
        return import("/markdown.js").then(({ renderInto }) => {
          const node = document.createElement("div");
          renderInto(node, "first\\n\\nsecond");
          const [first, second] = node.children;
          renderInto(node, "first\\n\\nsecond and more\\n\\n- third");
          return [node.children[0] === first, node.children[1] === second, node.children.length];
        });
    """)
    assert same == [True, False, 3]


def test_a_long_line_of_open_marks_takes_no_long_time(page: Browser, opened: Open, small: Runtime) -> None:
    """Each mark was looked for from each place to the end of the line: a model that repeats itself froze the page."""
    opened(Scripted(small))
    steps = page.run("""
        return import("/markdown.js").then(({ renderInto }) => {
          const real = String.prototype.indexOf;
          let looked = 0;
          String.prototype.indexOf = function (what, from = 0) {
            const found = real.call(this, what, from);
            looked += (found < 0 ? this.length : found) - from;
            return found;
          };
          try {
            for (const mark of ["*a ", "_a ", "[", "`a ", "~~a ", "**a "]) {
              renderInto(document.createElement("div"), mark.repeat(4000));
            }
          } finally {
            String.prototype.indexOf = real;
          }
          return looked;
        });
    """)
    assert steps < 40 * 6 * 16000
