"""The site of a study in NVFLARE's simulator, where all sites share one root folder."""

from fcorun.sites.server.kit_study import StudySite


class SimulatedSite(StudySite):
    """A site whose kit is a folder of its name."""

    def open_site(self, name, root):
        return super().open_site(name, root / "local" / name)

    def open_log(self, name, root):
        return super().open_log(name, root / "local" / name)
