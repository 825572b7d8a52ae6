"""The seam between a stored turn and the request that extends it: whether it may be, and what is declared about it.

One synchronous function decides, before anything is rendered or changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from trio_sessions.core.boundary import BoundaryEvent, BoundaryKind, late_tool_results
from trio_sessions.core.history.base import Attachment, Message
from trio_sessions.core.history.rendered import RenderedWith
from trio_sessions.errors import RenderingChanged, TruncatedGeneration

__all__ = ["OnToolsChange", "OnTruncated", "Seam", "SeamPolicy", "decide_seam"]

OnTruncated: TypeAlias = Literal["refuse", "close"]
"""``refuse``: a turn that ended at the length limit is not extended. ``close``: it is closed with synthetic ids."""
OnToolsChange: TypeAlias = Literal["report", "branch", "reject"]
"""``report``: the prefix is reused, and the change declared. ``branch``: the request gets a prompt of its own beside
what is stored, which only a history that branches can keep. ``reject``: the request is refused."""

_TRUNCATED: Final = "length"


@dataclass(frozen=True, slots=True)
class SeamPolicy:
    """What the launch wants at a seam.

    Attributes:
        on_truncated: for a stored turn that ended at the length limit.
        on_tools_change: for a request with other tools or template kwargs than the stored turn.
    """

    on_truncated: OnTruncated = "close"
    on_tools_change: OnToolsChange = "report"


@dataclass(frozen=True, slots=True, eq=False)
class Seam:
    """What was decided.

    Attributes:
        attachment: where the request joins after all.
        rendered_with: what its checkpoint will have been rendered with; the base's object where it is the same.
        changes: kind and sentence of every change of what the base was rendered with.
    """

    attachment: Attachment
    rendered_with: RenderedWith
    changes: tuple[tuple[BoundaryKind, str], ...] = ()

    def events(self, *, keep: int, synthetic: int, rendered: Sequence[BoundaryEvent] = ()) -> tuple[BoundaryEvent, ...]:
        """All that is declared at the seam, once the extension is rendered.

        Args:
            keep: how many of the standing ids the prompt kept: what is rendered anew starts there.
            synthetic: how many ids after those close the turn before.
            rendered: what the renderer declared.
        """
        changes = [BoundaryEvent(kind, keep, detail) for kind, detail in self.changes]
        late = late_tool_results(self.attachment.stored, self.attachment.appended, position=keep + synthetic)
        return (*rendered, *changes, *(late if self.attachment.base is not None else ()))


def decide_seam(
    attachment: Attachment, request: Sequence[Message], rendered_with: RenderedWith, policy: SeamPolicy
) -> Seam:
    """What becomes of a request that was attached; nothing is changed.

    Args:
        attachment: where its messages join.
        request: all of its messages.
        rendered_with: its tools and effective kwargs.
        policy: what the launch wants.

    Raises:
        TruncatedGeneration: the base ended at the length limit and is not to be extended.
        RenderingChanged: tools or kwargs changed and are not to. The text says which.
    """
    base = attachment.base
    if base is None:
        return Seam(attachment, rendered_with)
    tools = base.rendered_with.tools_changed_to(rendered_with)
    kwargs = base.rendered_with.kwargs_changed_to(rendered_with)
    if (tools or kwargs) and policy.on_tools_change == "branch":
        return Seam(attachment.at_new_root(request), rendered_with)
    if policy.on_truncated == "refuse" and base.finish_reason == _TRUNCATED:
        raise TruncatedGeneration(
            f"truncated generation cannot be extended: message {base.message_count - 1} ended at the length limit; "
            "send the request before it again, with more room, or serve with --on-truncated close"
        )
    if (tools or kwargs) and policy.on_tools_change == "reject":
        raise RenderingChanged(
            " and ".join(
                f"{what} changed since the turn that this request extends ({how})"
                for what, how in (("tools", tools), ("chat_template_kwargs", kwargs))
                if how
            )
            + "; send what that turn had, start another session, or serve with --on-tools-change report"
        )
    changes: list[tuple[BoundaryKind, str]] = []
    if tools:
        changes.append(("tools_changed", f"tools since the turn before it: {tools}"))
    if kwargs:
        changes.append(("template_kwargs_changed", f"template kwargs since the turn before it: {kwargs}"))
    return Seam(attachment, rendered_with.sharing(base.rendered_with), tuple(changes))
