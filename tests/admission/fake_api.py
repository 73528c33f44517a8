"""An API server with one Secret and one webhook configuration, enough for the certificate store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonpatch
import msgspec

from topology.kube.errors import ApiError

SECRET = "/api/v1/namespaces/isochrone-system/secrets/cert"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-isochrone"


@dataclass
class FakeApi:
    """An API server with one collection of Secrets and one webhook configuration."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 0
    writes: list[str] = field(default_factory=list)

    async def get(self, path: str) -> bytes:
        await asyncio.sleep(0)
        if path not in self.objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        return msgspec.json.encode(self.objects[path])

    async def create(self, path: str, obj: Any) -> bytes:
        await asyncio.sleep(0)
        path = f"{path}/{obj['metadata']['name']}"
        if path in self.objects:
            raise ApiError(409, "AlreadyExists", f"{path} already exists")
        return self._store("create", path, obj)

    async def request(self, method: str, path: str, *, body: bytes | None = None) -> bytes:
        await asyncio.sleep(0)
        obj = msgspec.json.decode(body or b"{}")
        if obj["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._store(method, path, obj)

    async def patch_json(self, path: str, ops: Sequence[Mapping[str, Any]]) -> bytes:
        await asyncio.sleep(0)
        try:
            obj = jsonpatch.apply_patch(self.objects[path], ops)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise ApiError(422, "Invalid", str(error)) from error
        return self._store("patch", path, obj)

    def _store(self, verb: str, path: str, obj: dict[str, Any]) -> bytes:
        self.version += 1
        self.writes.append(f"{verb} {path.rpartition('/')[2]}")
        self.objects[path] = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        return msgspec.json.encode(self.objects[path])

    def configuration(self, *bundles: str | None) -> None:
        hooks = [
            {"name": f"h{number}.isochrone.dev", "clientConfig": {"service": {}} | ({"caBundle": ca} if ca else {})}
            for number, ca in enumerate(bundles)
        ]
        self.objects[HOOKS] = {"metadata": {"name": "zz-isochrone", "resourceVersion": "0"}, "webhooks": hooks}

    def bundles(self) -> list[str | None]:
        return [hook["clientConfig"].get("caBundle") for hook in self.objects[HOOKS]["webhooks"]]
