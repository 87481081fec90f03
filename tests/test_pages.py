"""Pages: what templates may do to what they are given."""

import jinja2

from lottery.results import pages


def filled(monkeypatch, template, **values):
    monkeypatch.setattr(jinja2, "PackageLoader", lambda *_: jinja2.DictLoader({"page.html": template}))
    return pages.fill("page.html", **values)


def test_commands_in_backticks_become_code_asterisks_bold_and_nothing_else_becomes_markup(monkeypatch):
    told = "`imp run --run 'a<b'` & <b>more</b> of `imp status`, one ` alone, **bold**"

    assert filled(monkeypatch, "{{ told | marked }}", told=told) == (
        "<code>imp run --run &#39;a&lt;b&#39;</code> &amp; &lt;b&gt;more&lt;/b&gt; of <code>imp status</code>, one ` alone, "
        "<b>bold</b>"
    )


def test_json_in_a_page_cannot_end_its_script(monkeypatch):
    assert filled(monkeypatch, "{{ told | within }}", told=["</script>"]) == '["\\u003c/script>"]'
