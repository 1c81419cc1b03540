"""What Consul and Eureka answer, as their documents have it, and what is no such answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.routing.registry import ServiceCard
from sits.state.registry import consul, eureka
from sits.state.registry.imported import MOST_ENTRIES, lacking, models_of
from sits.state.registry.source import entries


def check(name: str, status: str) -> dict[str, Any]:
    return {
        "Node": "node-1", "CheckID": f"service:{name}", "Name": f"Service '{name}' check", "Status": status, "Notes": "",
        "Output": "TCP connect 10.1.10.12:8000: Success", "ServiceID": name, "ServiceName": name, "ServiceTags": [],
        "Type": "tcp", "Definition": {}, "CreateIndex": 12, "ModifyIndex": 14,
    }  # fmt: skip


def instance(name: str, host: str, *statuses: str, **service: Any) -> dict[str, Any]:
    """One element of `/v1/health/service/NAME`."""
    return {
        "Node": {
            "ID": "40e4a748-2192-161a-0510-9bf59fe950b5", "Node": "node-1", "Address": host, "Datacenter": "dc1",
            "TaggedAddresses": {"lan": host, "wan": host}, "Meta": {"consul-network-segment": ""}, "CreateIndex": 11,
        },
        "Service": {
            "ID": f"{name}-{host}", "Service": name, "Tags": ["payments", "fraud"], "Address": "", "Meta": {"version": "4.0"},
            "Port": 8000, "Weights": {"Passing": 10, "Warning": 1}, "EnableTagOverride": False, "Proxy": {}, "Connect": {},
            "PeerName": "", "CreateIndex": 12, "ModifyIndex": 12, **service,
        },
        "Checks": [check("serfHealth", "passing"), *(check(name, status) for status in statuses)],
    }  # fmt: skip


def card(name: str, origin: Any = "consul", **fields: Any) -> ServiceCard:
    return ServiceCard(name, origin=origin, **fields)


CATALOG = {"consul": [], "transactions": ["payments", "fraud"], "vllm-qwen": ["vllm", "问答"]}
LISTED = {
    "ID": "40e4a748", "Node": "node-1", "Address": "192.168.10.10", "Datacenter": "dc1", "ServiceAddress": "172.17.0.3",
    "ServiceName": "transactions", "ServiceTags": ["payments"], "ServiceMeta": {"description": "Scores payments."},
    "ServicePort": 5000, "ServiceKind": "", "ServiceWeights": {"Passing": 1, "Warning": 1}, "ServiceProxy": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "found"),
    [
        pytest.param(
            CATALOG,
            [card("transactions", domains=("payments", "fraud")), card("vllm-qwen", domains=("vllm", "问答"))],
            id="catalog/services: names and tags, without Consul itself",
        ),
        pytest.param(
            [instance("transactions", "10.1.10.12", "critical"), instance("transactions", "10.1.10.13", "warning")],
            [
                card(
                    "transactions",
                    domains=("payments", "fraud"),
                    labels={"version": "4.0"},
                    address="http://10.1.10.13:8000",
                    healthy=True,
                )
            ],
            id="health/service: one card for all instances, with the address of one that is well",
        ),
        pytest.param(
            [instance("down", "fd00::7", "critical", Tags=None, Meta={"scheme": "https", "Domains": "退款, billing ,"})],
            [
                card(
                    "down",
                    domains=("退款", "billing"),
                    labels={"scheme": "https", "Domains": "退款, billing ,"},
                    address="https://[fd00::7]:8000",
                    healthy=False,
                )
            ],
            id="health/service: nobody well, IPv6, https, subjects in the metadata",
        ),
        pytest.param(
            [LISTED],
            [
                card(
                    "transactions",
                    description="Scores payments.",
                    domains=("payments",),
                    labels={"description": "Scores payments."},
                    address="http://172.17.0.3:5000",
                    healthy=True,
                )
            ],
            id="catalog/service",
        ),
        pytest.param(
            {
                "redis-1": {"ID": "redis-1", "Service": "redis", "Tags": [], "Meta": {}, "Port": 0, "Address": ""},
                "proxy": {"ID": "proxy", "Service": "web-sidecar-proxy", "Kind": "connect-proxy", "Port": 21000, "Address": ""},
            },
            [card("redis")],
            id="agent/services, without sidecars",
        ),
        pytest.param([], [], id="a service without instances"),
    ],
)
def test_answers_of_consul_become_cards(document: Any, found: list[ServiceCard]) -> None:
    assert consul.cards(json.dumps(document).encode()) == found


APP = {
    "name": "TRANSACTION-BEHAVIOUR",
    "instance": [
        {
            "instanceId": "host-1:transaction-behaviour:8080", "hostName": "host-1.example.com", "app": "TRANSACTION-BEHAVIOUR",
            "ipAddr": "10.0.0.7", "status": "DOWN", "overriddenStatus": "UNKNOWN", "port": {"$": 8080, "@enabled": "true"},
            "securePort": {"$": 443, "@enabled": "false"}, "countryId": 1, "vipAddress": "transaction-behaviour",
            "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
            "leaseInfo": {"renewalIntervalInSecs": 30, "durationInSecs": 90, "serviceUpTimestamp": 1611512016403},
            "metadata": {"@class": "java.util.Collections$EmptyMap"}, "homePageUrl": "http://host-1.example.com:8080/",
            "secureVipAddress": "transaction-behaviour", "isCoordinatingDiscoveryServer": "false", "actionType": "ADDED",
        },
        {
            "instanceId": "host-2", "hostName": "host-2.example.com", "app": "TRANSACTION-BEHAVIOUR", "ipAddr": "10.0.0.8",
            "status": "UP", "port": {"$": 8080, "@enabled": "false"}, "securePort": {"$": "8443", "@enabled": "true"},
            "vipAddress": "fraud", "metadata": {"description": "交易行为分析", "domains": "risk,payments"},
        },
    ],
}  # fmt: skip
FOUND = card(
    "TRANSACTION-BEHAVIOUR",
    "eureka",
    description="交易行为分析",
    domains=("fraud", "risk", "payments"),
    labels={"description": "交易行为分析", "domains": "risk,payments"},
    address="https://host-2.example.com:8443",
    healthy=True,
)
XML = """<?xml version="1.0" encoding="UTF-8"?>
<applications>
  <versions__delta>1</versions__delta>
  <apps__hashcode>DOWN_1_UP_1_</apps__hashcode>
  <application>
    <name>TRANSACTION-BEHAVIOUR</name>
    <instance>
      <instanceId>host-1:transaction-behaviour:8080</instanceId><hostName>host-1.example.com</hostName>
      <app>TRANSACTION-BEHAVIOUR</app><ipAddr>10.0.0.7</ipAddr><status>DOWN</status><overriddenstatus>UNKNOWN</overriddenstatus>
      <port enabled="true">8080</port><securePort enabled="false">443</securePort><countryId>1</countryId>
      <dataCenterInfo class="com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo"><name>MyOwn</name></dataCenterInfo>
      <leaseInfo><renewalIntervalInSecs>30</renewalIntervalInSecs></leaseInfo>
      <metadata class="java.util.Collections$EmptyMap"/><vipAddress>transaction-behaviour</vipAddress>
    </instance>
    <instance>
      <hostName>host-2.example.com</hostName><status>UP</status><vipAddress>fraud</vipAddress>
      <port enabled="false">8080</port><securePort enabled="true">8443</securePort>
      <metadata><description>交易行为分析</description><domains>risk,payments</domains></metadata>
    </instance>
  </application>
</applications>"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param(
            json.dumps({"applications": {"versions__delta": "1", "apps__hashcode": "UP_1_", "application": [APP]}}),
            [FOUND],
            id="apps",
        ),
        pytest.param(json.dumps({"application": APP}), [FOUND], id="apps/NAME"),
        pytest.param(
            json.dumps(
                {"applications": {"application": {"name": "A", "instance": {"status": "UP", "hostName": "h", "port": 80}}}}
            ),
            [card("A", "eureka", address="http://h:80", healthy=True)],
            id="objects where a list of one is meant, as older servers write",
        ),
        pytest.param(XML, [FOUND], id="XML"),
        pytest.param('{"applications": {"versions__delta": "1", "apps__hashcode": "", "application": []}}', [], id="empty"),
        pytest.param("<applications><versions__delta>1</versions__delta></applications>", [], id="empty XML"),
        pytest.param(
            "<application><name>A</name><instance><status>STARTING</status></instance></application>",
            [card("A", "eureka")],
            id="XML of one, without an address",
        ),
    ],
)
def test_answers_of_eureka_become_cards(body: str, found: list[ServiceCard]) -> None:
    assert eureka.cards(body.encode()) == found


@pytest.mark.parametrize(
    ("parse", "body", "said"),
    [
        pytest.param(consul.cards, b"<html>502</html>", "no answer of Consul: it is not JSON", id="consul: a proxy's page"),
        pytest.param(consul.cards, b"", "it is not JSON", id="consul: nothing"),
        pytest.param(consul.cards, b"7", "neither a list of instances nor an object", id="consul: a number"),
        pytest.param(
            consul.cards, b'{"x": [], "a": ["b", 7]}', "'a': Expected `str`, got `int`", id="consul: a tag that is a number"
        ),
        pytest.param(
            consul.cards, b'[{"Node": {}, "Service": {"Service": "pay", "Port": "x"}}]', "'pay': Expected `int`, got `str`",
            id="consul: the port of an instance",
        ),
        pytest.param(consul.cards, b'{"id-1": {"Service": 7}}', "'id-1': Expected `str`", id="consul: an agent's service"),
        pytest.param(consul.cards, b'[{"Node": {}}]', "instance 1: Object missing required", id="consul: no service"),
        pytest.param(
            consul.cards, b'[{"ServiceName": "a", "ServicePort": "x"}]', "'a': Expected `int`", id="consul: port of letters"
        ),
        pytest.param(consul.cards, b'{"": []}', "'' is no name of a service", id="consul: an empty name"),
        pytest.param(consul.cards, b'{"a\\u0000b": []}', "is no name of a service", id="consul: NUL in a name"),
        pytest.param(consul.cards, b"[" * 100_000, "it is not JSON", id="consul: very deep"),
        pytest.param(consul.cards, "{\"é\": []}".encode("latin-1"), "it is not JSON", id="consul: not UTF-8"),
        pytest.param(eureka.cards, b"[]", "it is no object", id="eureka: a list"),
        pytest.param(eureka.cards, b"{}", "neither `applications` nor `application`", id="eureka: nothing in it"),
        pytest.param(eureka.cards, b'{"application": [{"name": "A"}, {}]}', "application 2 has no name", id="eureka: no name"),
        pytest.param(eureka.cards, b'{"application": {"name": "A", "instance": [7]}}', "an instance of A is no object", id="7"),
        pytest.param(eureka.cards, b'{"application": {"name": "A", "instance": [{}]}}', "has no status", id="eureka: no status"),
        pytest.param(eureka.cards, b"<applications><application>", "it is not XML", id="eureka: cut"),
        pytest.param(
            eureka.cards,
            b"<application>" + b"<a>" * 3000 + b"</a>" * 3000 + b"</application>",
            "nested too deeply",
            id="eureka: deep",
        ),
        pytest.param(eureka.cards, b"<html/>", "its root is <html>", id="eureka: a page"),
        pytest.param(
            eureka.cards,
            b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><applications>&d;</applications>',
            "it has a document type",
            id="eureka: entities that grow",
        ),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused_and_says_why(parse: Any, body: bytes, said: str) -> None:
    with pytest.raises(SitsError) as caught:
        parse(body)
    assert caught.value.code is Code.INVALID_REQUEST
    assert said in caught.value.message


@pytest.mark.parametrize(
    "port", ["Infinity", "-Infinity", "NaN", "1e400", "9" * 40, "-1", "0", "65536", '"Infinity"', "null", "[]"]
)
def test_what_can_be_no_port_makes_no_address(port: str) -> None:
    body = '{"application": {"name": "A", "instance": [{"hostName": "h", "status": "UP", "port": {"$": PORT}}]}}'
    assert [one.address for one in eureka.cards(body.replace("PORT", port).encode())] == [""]


@pytest.mark.parametrize("port", ["9" * 40, "-1", "0", "65536"])
def test_nor_does_it_for_consul(port: str) -> None:
    body = '{"a": {"Service": "a", "Address": "h", "Port": PORT}}'
    assert [one.address for one in consul.cards(body.replace("PORT", port).encode())] == [""]


@pytest.mark.parametrize("port", ["Infinity", "NaN", "1e400", '"80"'])
def test_what_is_no_whole_number_is_no_answer_of_consul(port: str) -> None:
    body = '{"a": {"Service": "a", "Address": "h", "Port": PORT}}'
    with pytest.raises(SitsError) as caught:
        consul.cards(body.replace("PORT", port).encode())
    assert caught.value.code is Code.INVALID_REQUEST


def test_more_services_than_are_taken_are_refused() -> None:
    with pytest.raises(SitsError) as caught:
        consul.cards(json.dumps({f"s{n}": [] for n in range(MOST_ENTRIES + 1)}).encode())
    assert caught.value.code is Code.TOO_LARGE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Service", "Node", "Checks", "ServiceName", "application", "name", "instance", "x"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(value=JSON)
def test_any_document_gives_cards_or_a_refusal(value: Any) -> None:
    for parse in (consul.cards, eureka.cards):
        try:
            found: Any = parse(json.dumps(value).encode())
        except SitsError as error:
            found = error
        if isinstance(found, SitsError):
            assert found.code is Code.INVALID_REQUEST
        else:
            assert all(isinstance(one, ServiceCard) for one in found)


def test_entries_that_can_be_asked_become_models() -> None:
    found = consul.cards(
        json.dumps(
            [
                instance("qwen", "10.0.0.1", "passing", Tags=["vllm", "问答"], Meta={"team": "search"}),
                instance("plain http", "10.0.0.2", "passing", Meta={}),
            ]
        ).encode()
    )
    models, left = models_of(found)
    assert (left, [one.metadata.name for one in models]) == (["plain http"], ["qwen"])
    assert models[0].metadata.labels == {"team": "search", "imported-from": "consul"}
    assert (models[0].spec.engine, models[0].spec.endpoint, models[0].spec.domains) == (
        "vllm",
        "http://10.0.0.1:8000",
        ["vllm", "问答"],
    )
    models, left = models_of(found, "openai")
    assert [(one.metadata.name, one.spec.engine) for one in models] == [("plain-http", "openai"), ("qwen", "vllm")]
    with pytest.raises(SitsError, match="no engine is called 'gpt'"):
        models_of(found, "gpt")
    plain, away = found[0], msgspec.structs.replace(found[0], address="", name="--")
    assert [lacking(one) for one in (plain, away, found[1])] == ["engine", "engine or address or name that a Model can have", ""]
    assert [lacking(one, "vllm") for one in (plain, away)] == ["", "address or name that a Model can have"]


class Agent(BaseHTTPRequestHandler):
    """A server that answers as both registries do, and notes the token that it was given."""

    tokens: list[str | None] = []  # noqa: RUF012 - of the server that runs
    users: list[str | None] = []  # noqa: RUF012 - as above

    def do_GET(self) -> None:
        self.tokens.append(self.headers["x-consul-token"])
        self.users.append(self.headers["authorization"])
        answers: dict[str, Any] = {
            "/v1/catalog/services": CATALOG,
            "/v1/health/service/transactions": [instance("transactions", "10.1.10.12", "passing")],
            "/v1/health/service/vllm-qwen": [],
            "/eureka/apps": {"applications": {"application": [APP]}},
        }
        body = json.dumps(answers.get(self.path, {})).encode()
        self.send_response(302 if self.path == "/away" else 200 if self.path in answers else 403)
        if self.path == "/away":
            self.send_header("location", "/v1/catalog/services")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def agent() -> Iterator[str]:
    Agent.tokens.clear()
    Agent.users.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_is_asked_for_all_its_services(agent: str) -> None:
    found = entries("consul", agent, headers={"x-consul-token": "geheim"})
    assert [(one.name, one.address) for one in found] == [("transactions", "http://10.1.10.12:8000"), ("vllm-qwen", "")]
    assert set(Agent.tokens) == {"geheim"}
    assert entries("eureka", f"{agent}/") == [FOUND]
    assert [one.name for one in entries("consul", f"{agent}/v1/health/service/transactions")] == ["transactions"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param("/v1/nothing", Code.UPSTREAM_ERROR, id="forbidden"),
        pytest.param("/away", Code.UPSTREAM_ERROR, id="sent elsewhere: the token would go along"),
    ],
)
def test_an_address_that_does_not_answer_so_is_an_error(agent: str, path: str, code: Code) -> None:
    with pytest.raises(SitsError) as caught:
        entries("consul", agent.replace("//", "//u:geheim@") + path)
    assert caught.value.code is code
    assert "geheim" not in caught.value.message
    assert Agent.users[-1] == "Basic dTpnZWhlaW0="


def test_files_are_read_and_missing_ones_and_silent_servers_said(tmp_path: Path) -> None:
    file = tmp_path / "services.json"
    file.write_text(json.dumps(CATALOG))
    assert [one.name for one in entries("consul", str(file))] == ["transactions", "vllm-qwen"]
    with pytest.raises(SitsError) as caught:
        entries("consul", str(tmp_path / "none"))
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(SitsError) as caught:
        entries("eureka", "http://127.0.0.1:1")
    assert caught.value.code is Code.UPSTREAM_UNREACHABLE
