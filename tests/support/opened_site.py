"""A site of NVFLARE's Collab API with the rows of a toy site."""

from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.nvflare import CollabSite


class OpenedSite(CollabSite):
    """A site with the rows of a toy site, in a folder of the test."""

    def __init__(self, toy):
        super().__init__()
        self.toy, self.opened = toy, None

    def open_site(self, name, root):
        self.opened = DurableSite(self.toy, root / name)
        return self.opened
