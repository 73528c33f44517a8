from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("node", "token", "request")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    node: str
    token: str
    request: bytes
    def __init__(self, node: _Optional[str] = ..., token: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class EnrolAnswer(_message.Message):
    __slots__ = ("certificate", "valid_s")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    valid_s: float
    def __init__(self, certificate: _Optional[bytes] = ..., valid_s: _Optional[float] = ...) -> None: ...
