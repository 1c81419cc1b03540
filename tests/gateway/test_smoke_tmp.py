import time
import pytest
from gateway_rig import *
from gateway_wires import *
from sits.engines.scripted import *

@pytest.mark.parametrize(("op","engine"), list(WIRES), ids=lambda v: v)
@pytest.mark.parametrize("stream",[0,1])
@inside_loop
async def test_a(tmp_path, op, engine, stream):
    w = WIRES[op,engine]
    if stream and op=="embeddings": return
    steps = w.streams(*texts(3)) if stream else [w.answers("你好 😀")]
    async with ScriptedServer([READ,*steps,AGAIN]) as s:
        t0=time.perf_counter()
        async with Gateway(tmp_path, model("m", s.url, engine)) as g:
            t1=time.perf_counter()
            a = await g.ask(PATHS[op], request(op,"m",stream=bool(stream)))
            t2=time.perf_counter()
            print(a)
            print(s.requests[0].path, s.requests[0].body)
            assert a.status==200
            assert (streamed(op,a.body) if stream else said(op,a.body)) == ("".join(texts(3)) if stream else "你好 😀" if op!="embeddings" else "[0.5, -0.25]")
            if stream: assert TERMINATORS[op] in a.body
            r = g.record(a)
            assert r.usage.output == 7 or op=="embeddings"
        t3=time.perf_counter()
        print("TIMES", t1-t0, t2-t1, t3-t2)
