"""The hosts of a cluster without Slurm, and how `ssh` reaches them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from . import field_types as f

HOST_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,254}")
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]{0,63}")


def _host_name(name: str, info: ValidationInfo) -> str:
    """What starts with a dash would be an option to `ssh`."""
    if "@" in name and not f.has_variables(name, info):
        user, _, host = name.rpartition("@")
        todo = f"write {{host: {host}, user: {user}}}"
        raise f.misfit("a host's name or address alone", todo)
    if not f.has_variables(name, info) and not HOST_NAME.fullmatch(name):
        raise f.misfit("a host's name or address")
    return name


def _user_name(name: str, info: ValidationInfo) -> str:
    if not f.has_variables(name, info) and not USER_NAME.fullmatch(name):
        raise f.misfit("a user's name")
    return name


def _to_mapping(value: Any) -> Any:
    """A host may be written as its name alone."""
    if not isinstance(value, str | dict | Host):
        raise f.misfit("a host's name or address, or a mapping with `host`")
    return {"host": value} if isinstance(value, str) else value


HostName = Annotated[f.Line, AfterValidator(_host_name)]
UserName = Annotated[f.Line, AfterValidator(_user_name)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Login(f.Section):
    """How to log in; what is left out is for `ssh` and its own configuration to say."""

    port: Port | None = Field(default=None, description="port of its SSH server")
    user: UserName | None = Field(default=None, description="user to log in as")
    identity: f.PathText | None = Field(default=None, description="file of the private key")


class SshSettings(Login):
    """Defaults for all hosts, and which configuration `ssh` reads."""

    config: f.PathText | None = Field(
        default=None, description="file that ssh reads in place of ~/.ssh/config (`ssh -F`)"
    )
    connect_s: Annotated[float, Field(ge=1, le=120)] = Field(
        default=10.0, description="how long a connection may take"
    )
    check_s: Annotated[float, Field(ge=1, le=600)] = Field(
        default=60.0,
        description="how long each command of a host's check before the first job may take: "
        "a login, and `setup` with Python's start",
    )


class Host(Login):
    """One host."""

    host: HostName = Field(description="its name or address, or its name in ssh's configuration")

    def with_defaults(self, settings: SshSettings) -> Host:
        """This host, with the defaults for all hosts where it says nothing."""
        own = {key: getattr(self, key) or getattr(settings, key) for key in Login.model_fields}
        return self.model_copy(update=own)


Hosts = tuple[Annotated[Host, BeforeValidator(_to_mapping)], ...]


def name_hosts(hosts: Iterable[Host]) -> dict[str, Host]:
    """The hosts by the names of their nodes: as in the profile, with the port where several SSH
    servers have one name. The same server twice is there once."""
    hosts = list(hosts)
    count = Counter(host.host for host in hosts)
    return {
        host.host if count[host.host] == 1 else f"{host.host}:{host.port or 22}": host
        for host in hosts
    }


def refuse_repeated(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Raise for a server that is there twice: two nodes of a job would share it."""
    names, misfits = set[tuple[str, int]](), f.Misfits()
    for index, host in enumerate(hosts):
        name = (host.host, host.port or 22)
        if name in names and "$" not in host.host:
            what = f"`{host.host}` is in {{at}} twice"
            misfits.append(((index,), f.misfit("each host once", "remove it", what), host.host))
        names.add(name)
    f.raise_misfits(misfits)
    return hosts
