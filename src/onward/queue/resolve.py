"""From what was given as `provider=` to a provider bound to one queue."""

from typing import Any, TypeAlias

from onward.queue.checks import Arguments
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.memory import Memory

AnyProvider: TypeAlias = Provider | ProviderFactory[Any]

_in_process = Memory()
"""Without a provider, a queue and the worker of the same name meet here."""


def bound(provider: AnyProvider | None, queue_name: str, arguments: Arguments) -> Provider:
    """The provider for this queue."""
    if provider is None:
        return _in_process.for_queue(queue_name)
    if isinstance(provider, ProviderFactory):
        return provider.for_queue(queue_name)
    if not isinstance(provider, Provider):
        arguments.refuse("provider", "a provider or a factory of providers", provider)
    if provider.queue_name != queue_name:
        arguments.refuse("provider", f"one for {queue_name!r}", f"one for {provider.queue_name!r}")
    return provider
