"""Indexes over HTTP (extra ``serve``) and as tools of agents (extra ``mcp``)."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.serve.app import create_app
    from latelier.serve.limits import Limits
    from latelier.serve.mcp import create_mcp_server
    from latelier.serve.security import Access
    from latelier.serve.server import serve

__all__ = ["Access", "Limits", "create_app", "create_mcp_server", "serve"]
__getattr__, __dir__ = lazy_names(
    __name__,
    app=("create_app",),
    mcp=("create_mcp_server",),
    security=("Access",),
    server=("serve",),
    limits=("Limits",),
)
