"""An HTTP/1.1 transport for httpx on trio, for calls to servers that are near: engines, routers, other workers.

From the inside out: ``exchange`` is one request and its answer as bytes, ``timeouts`` how long it may take, ``wire`` a
connection to a server, ``pool`` the connections that are kept, ``carry`` one exchange over one wire, ``transport`` what
httpx sees.
"""

from trio_sessions.engine.http.exchange import AnswerTooLarge, Limits
from trio_sessions.engine.http.transport import TrioTransport

__all__ = ["AnswerTooLarge", "Limits", "TrioTransport"]
