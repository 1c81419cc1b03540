"""Flows on a Temporal server: a flow is a workflow, a step an activity, a signal a signal.

Bodies run against the same `Context` as everywhere; the server's event history is their log. What is ours, not Temporal's:

- Tries of a step are counted by the workflow, one activity for each, since Temporal's own count cannot tell a step that
  failed from one whose process died. The activity itself is repeated without end, for the second reason only.
- A running step gives a sign of life by itself, so a dead process is noticed after `lease` seconds.
- Keys of signals are remembered in the workflow: a signal that was sent twice is dropped there.
- A cancelled flow is terminated: it goes no further whoever runs it, and also when nobody does.

Temporal ends a flow at about 50,000 events of its history, which is about 8,000 steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity, workflow
from temporalio.client import Client, RPCError, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    FailureError,
    WorkflowAlreadyStartedError,
)
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RetryConfig, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import DEFAULT_RETRY, Action, Body, Context, Retry, State, Status, Step, StepFailed
from sits.ports.flows.program import Program, check_size, describe, ended_flow, missing_flow, still_running
from sits.ports.flows.replay import MOST_CALLS

CONSISTENCY = {
    "start": "once for an id, as long as the server keeps ended ones; durable when it returns",
    "step": "at least once, its result remembered once in the event history",
    "send": "received once for a key, in order; durable when it returns",
    "sleep": "a timer of the server, goes on while nobody runs",
    "state": "the newest; a list of flows may lag a second behind",
    "durability": "the server's database",
    "outage": "calls raise state_unavailable within the timeout; flows wait for the server and go on. "
    "Another process takes up what a dead one left after the lease",
}

_LOG = logging.getLogger("sits.flows.temporal")
_SIGNAL = "sits.signal"
# Failing steps are ordinary; the library would write each with its trace.
_QUIET = ApplicationErrorCategory.BENIGN
_LONGEST_STEP = timedelta(days=365)
_PAUSE = 0.2
_CLOSING = 5.0
_T = TypeVar("_T")

_STATUS: dict[WorkflowExecutionStatus, Status] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "done",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "cancelled",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
}
_QUERIES: dict[Status | None, str] = {
    None: "",
    "running": ' AND ExecutionStatus IN ("Running", "ContinuedAsNew")',
    "done": ' AND ExecutionStatus = "Completed"',
    "failed": ' AND ExecutionStatus IN ("Failed", "TimedOut")',
    "cancelled": ' AND ExecutionStatus IN ("Canceled", "Terminated")',
}


class TemporalFlows:
    """A client and, after `run`, a worker of one namespace and task queue. All programs of a queue declare the same."""

    name = "temporal"

    def __init__(self, target: str, namespace: str, *, queue: str = "sits", lease: float = 10.0, timeout: float = 5.0) -> None:
        self._target = target
        self._namespace = namespace
        self._queue = queue
        self._lease = lease
        self._timeout = timeout
        self._program = Program()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None

    def flow(self, name: str, body: Body) -> None:
        self._program.flow(name, body)

    def action(self, name: str, action: Action) -> None:
        self._program.action(name, action)

    async def run(self) -> None:
        client = await self._bounded(self._connect())
        self._program.begin()
        if self._working is None:
            self._working = asyncio.create_task(self._work(client))

    async def start(self, flow: str, id: str, input: bytes = b"") -> None:
        self._program.check_start(flow, id, input)

        async def ask() -> None:
            client = await self._connect()
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await client.start_workflow(
                    flow,
                    input,
                    id=id,
                    task_queue=self._queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    task_timeout=timedelta(seconds=max(1.0, self._lease)),
                    request_eager_start=True,
                )

        await self._bounded(ask())

    async def send(self, id: str, signal: str, payload: bytes = b"", *, key: str = "") -> None:
        check_size("payload", payload)

        async def ask() -> None:
            handle = await self._handle(id)
            try:
                await handle.signal(_SIGNAL, args=[signal, key, payload])
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND and "completed" in error.message:
                    raise ended_flow(id) from error
                raise

        await self._bounded(ask(), id)

    async def state(self, id: str) -> State | None:
        try:
            return await self._bounded(self._describe(id), id)
        except SitsError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise

    async def states(self, *, status: Status | None = None, limit: int = 100) -> Sequence[State]:
        query = f'TaskQueue = "{self._queue}"{_QUERIES[status]}'

        async def ask() -> list[State]:
            client = await self._connect()
            return [
                State(one.id, one.workflow_type, _STATUS[one.status], started=one.start_time.timestamp())
                async for one in client.list_workflows(query, limit=limit)
                if one.status is not None
            ]

        return await self._bounded(ask())

    async def result(self, id: str, *, timeout: float) -> State:  # noqa: ASYNC109 - see the contract
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        return await self._ending(id)
                    except RPCError as error:
                        if error.status is RPCStatusCode.NOT_FOUND:
                            raise missing_flow(id) from error
                    except SitsError as error:
                        if error.code is not Code.STATE_UNAVAILABLE:
                            raise
                    await asyncio.sleep(_PAUSE)
        except TimeoutError as late:
            raise still_running(id, timeout) from late

    async def cancel(self, id: str) -> None:
        async def ask() -> None:
            handle = await self._handle(id)
            try:
                await handle.terminate(reason="cancelled")
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or "completed" not in error.message:
                    raise

        await self._bounded(ask(), id)

    async def aclose(self) -> None:
        working, self._working = self._working, None
        worker, self._worker = self._worker, None
        if working is None:
            return
        if worker is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await worker.shutdown()
        working.cancel()
        await asyncio.wait({working}, timeout=_CLOSING)
        self._client = None

    # The server

    async def _connect(self) -> Client:
        async with self._connecting:
            if self._client is None:
                client = await Client.connect(
                    self._target,
                    namespace=self._namespace,
                    runtime=_runtime(),
                    retry_config=RetryConfig(max_interval_millis=500, max_elapsed_time_millis=int(self._timeout * 1000)),
                )
                await _check_namespace(client)
                self._client = client
            return self._client

    async def _handle(self, id: str) -> WorkflowHandle[Any, bytes]:
        client = await self._connect()
        return client.get_workflow_handle(id, result_type=bytes)

    async def _bounded(self, call: Awaitable[_T], id: str = "") -> _T:
        """What the server answers, or a `SitsError` within the port's timeout."""
        try:
            async with asyncio.timeout(self._timeout):
                return await call
        except TimeoutError as error:
            raise self._away("no answer in time") from error
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and id:
                raise missing_flow(id) from error
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                raise SitsError(Code.INVALID_REQUEST, f"temporal: {error.message}") from error
            raise self._away(error.message) from error
        except RuntimeError as error:  # what the client raises when it cannot connect
            raise self._away(str(error)) from error

    def _away(self, why: str) -> SitsError:
        return SitsError(Code.STATE_UNAVAILABLE, f"temporal at {self._target} does not answer: {why}", retry_after=1.0)

    async def _describe(self, id: str) -> State:
        handle = await self._handle(id)
        seen = await handle.describe()
        status = _STATUS[seen.status or WorkflowExecutionStatus.RUNNING]
        output, error = await _outcome(handle) if status in ("done", "failed") else (None, None)
        return State(id, seen.workflow_type, status, output, error, seen.start_time.timestamp())

    async def _ending(self, id: str) -> State:
        handle = await self._handle(id)
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        return await self._describe(id)

    # The worker

    async def _work(self, client: Client) -> None:
        """Work until cancelled; a worker that the server threw out is followed by another."""
        while True:
            self._worker = self._make_worker(client)
            try:
                await self._worker.run()
                return
            except Exception as error:
                _LOG.warning("worker of queue %s ended: %s; another is started", self._queue, describe(error))
            await asyncio.sleep(_PAUSE)

    def _make_worker(self, client: Client) -> Worker:
        lease = timedelta(seconds=self._lease)
        return Worker(
            client,
            task_queue=self._queue,
            workflows=[_workflow(name, body, self._program, lease) for name, body in self._program.flows.items()],
            activities=[_activity(name, action, self._lease) for name, action in self._program.actions.items()],
            # Bodies do nothing by themselves, as everywhere; a sandbox would import our modules again for each flow.
            workflow_runner=UnsandboxedWorkflowRunner(),
            workflow_failure_exception_types=[workflow.NondeterminismError],
            sticky_queue_schedule_to_start_timeout=lease,
        )


# What the server runs here


def _workflow(name: str, body: Body, program: Program, lease: timedelta) -> type:
    """The workflow class of a declared flow."""

    class Flow:
        def __init__(self) -> None:
            self.context = _Context(program, lease)

        async def run(self, input: bytes) -> bytes:
            try:
                output = await body(self.context, input)
                check_size("result", output)
            except Exception as error:
                raise ApplicationError(describe(error), non_retryable=True) from error
            return output

        @workflow.signal(name=_SIGNAL)
        def signal(self, name: str, key: str, payload: bytes) -> None:
            self.context.receive(name, key, payload)

    # The library refuses local classes because its sandbox imports them by name; ours are made for one worker, without it.
    Flow.run.__qualname__ = "Flow.run"
    Flow.run = workflow.run(Flow.run)  # type: ignore[method-assign]
    return workflow.defn(name=name)(Flow)


def _activity(name: str, action: Action, lease: float) -> Callable[..., Awaitable[bytes]]:
    """The activity of a declared step: one try."""

    async def perform(key: str, input: bytes, attempt: int) -> bytes:
        alive = asyncio.create_task(_give_signs_of_life(lease / 3))
        try:
            output = await action(Step(key, input, attempt))
            check_size("result", output)
        except asyncio.CancelledError:
            if activity.is_worker_shutdown():
                raise ApplicationError("the runner left; another repeats the step", category=_QUIET) from None
            raise
        except Exception as error:
            raise ApplicationError(describe(error), non_retryable=True, category=_QUIET) from error
        else:
            return output
        finally:
            alive.cancel()

    return activity.defn(name=name)(perform)


async def _give_signs_of_life(every: float) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(every)


class _Context(Context):
    """The world of a body inside a workflow."""

    def __init__(self, program: Program, lease: timedelta) -> None:
        self.id = workflow.info().workflow_id
        self._actions = program.actions
        self._lease = lease
        self._calls = 0
        self._keys: set[str] = set()
        self._mail: dict[str, deque[bytes]] = {}
        self._waiting: dict[str, deque[object]] = {}

    def receive(self, name: str, key: str, payload: bytes) -> None:
        if key and key in self._keys:
            return
        self._keys.add(key)
        self._mail.setdefault(name, deque()).append(payload)

    def _next_call(self) -> int:
        number = self._calls
        self._calls += 1
        if number >= MOST_CALLS:
            raise ApplicationError(f"the flow asked for more than {MOST_CALLS} steps, sleeps and signals", non_retryable=True)
        return number

    async def step(self, name: str, input: bytes = b"", *, retry: Retry = DEFAULT_RETRY) -> bytes:
        number = self._next_call()
        if name not in self._actions:
            raise StepFailed(f"no step {name!r} is declared")
        attempt = 0
        while True:
            attempt += 1
            try:
                check_size("input", input)
                output: bytes = await workflow.execute_activity(
                    name,
                    args=[f"{self.id}/{number}", input, attempt],
                    result_type=bytes,
                    start_to_close_timeout=_LONGEST_STEP,
                    heartbeat_timeout=self._lease,
                    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=1)),
                )
            except (ActivityError, SitsError) as error:
                if attempt >= retry.attempts:
                    raise StepFailed(_message(error)) from error
            else:
                return output
            await workflow.sleep(retry.wait(attempt))

    async def sleep(self, seconds: float) -> None:
        self._next_call()
        if seconds > 0:
            await workflow.sleep(seconds)

    async def signal(self, name: str, *, timeout: float | None = None) -> bytes | None:  # noqa: ASYNC109 - see the contract
        self._next_call()
        mail = self._mail.setdefault(name, deque())
        waiting = self._waiting.setdefault(name, deque())
        me = object()
        waiting.append(me)
        try:
            if not (mail and waiting[0] is me) and timeout is not None and timeout <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(lambda: bool(mail) and waiting[0] is me, timeout=timeout)
                return mail.popleft()
            return None
        finally:
            waiting.remove(me)

    def now(self) -> float:
        return workflow.time()


# Reading what the library says


@functools.cache
def _runtime() -> Runtime:
    """One thread pool for all clients of this process; its log goes where ours goes."""
    forwarding = LogForwardingConfig(logger=_LOG, append_target_to_name=False)
    logs = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"), forwarding=forwarding)
    return Runtime(telemetry=TelemetryConfig(logging=logs))


async def _check_namespace(client: Client) -> None:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        advice = f"temporal operator namespace create --namespace {client.namespace}"
        raise SitsError(Code.INVALID_REQUEST, f"temporal has no namespace {client.namespace!r}; make it: {advice}") from error


async def _outcome(handle: WorkflowHandle[Any, bytes]) -> tuple[bytes | None, str | None]:
    try:
        return await handle.result(), None
    except WorkflowFailureError as failure:
        return None, _message(failure)


def _message(error: BaseException) -> str:
    """The message of the innermost failure."""
    while isinstance(error, FailureError | WorkflowFailureError) and error.cause is not None:
        if isinstance(error, ApplicationError):
            break
        error = error.cause
    return error.message if isinstance(error, FailureError) else describe(error)
