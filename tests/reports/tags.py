"""What a page consists of, as a parser of HTML sees it."""

from __future__ import annotations

from html.parser import HTMLParser


class Tags(HTMLParser):
    """What a page consists of: its tags, the attributes that may load or run something, the text of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.inside: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.inside.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "action", "srcset")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.ids += [str(value) for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        while tag in self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.text.setdefault(self.inside[-1], []).append(data)
