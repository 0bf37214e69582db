"""Templates: ours, else Flower's; and Flower's navigation with our links in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tornado.template import Loader, Template

OURS: Final = Path(__file__).parent / "templates"
NAVIGATION: Final = "navbar.html"
LINKS: Final = "singleton_links.html"


class WithOurPages(Loader):
    """Of Flower's templates, as far as there is none of ours with that name."""

    def _create_template(self, name: str) -> Template:
        own = OURS / name
        if own.is_file():
            return Template(own.read_text(), name=name, loader=self)
        if name == NAVIGATION:
            return Template(self._navigation(), name=name, loader=self)
        template: Any = super()._create_template(name)
        return template  # type: ignore[no-any-return]

    def _navigation(self) -> str:
        """Our links stand where the first list ends, after those to workers, tasks and broker."""
        flowers = (Path(self.root) / NAVIGATION).read_text()
        return flowers.replace("</ul>", (OURS / LINKS).read_text() + "</ul>", 1)
