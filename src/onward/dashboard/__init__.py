"""The dashboard: people ask, pages answer; whatever they do goes through one gate. Needs `onward[dashboard]`."""

from onward.dashboard.access import Role, Visitor
from onward.dashboard.asgi import Dashboard
from onward.dashboard.audit import AuditFile

__all__ = ["AuditFile", "Dashboard", "Role", "Visitor"]
