"""The model servers that stand behind the gateways: nginx for what it can serve, our own for streams that take a second."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from sits.bench import BenchError, bodies
from sits.bench.child import Child, answers
from sits.ports.servers.process import free_port

MODELS = '{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}'

_NGINX = """
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  server_tokens off;
  tcp_nodelay on;
  keepalive_timeout 600;
  keepalive_requests 1000000000;
  client_max_body_size 8m;
  client_body_buffer_size 64k;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  types {{ }}
  # What routers ask a worker before they trust it.
  server {{
    listen 127.0.0.1:{plain};
    default_type application/json;
    location = /v1/chat/completions {{ return 200 '{answer}'; }}
    location = /v1/models {{ return 200 '{models}'; }}
    location / {{ return 200 '{{}}'; }}
  }}
  server {{
    listen 127.0.0.1:{sse};
    root {folder};
    # A static file may not be POSTed to; its error page is the file.
    error_page 405 =200 /stream;
    location = /v1/chat/completions {{ return 405; }}
    location = /stream {{
      default_type text/event-stream;
      # The include filter takes the length away, so the answer is chunked; reading the file by one event's length, with
      # nothing held back, makes a chunk and a write of each event.
      ssi on;
      ssi_types text/event-stream;
      sendfile off;
      output_buffers 1 {chunk};
      postpone_output 0;
    }}
    location = /v1/models {{ default_type application/json; return 200 '{models}'; }}
    location / {{ default_type application/json; return 200 '{{}}'; }}
  }}
}}
"""


class Nginx:
    """nginx with the plain answers on one port and the streams on another."""

    def __init__(self, folder: Path, core: int) -> None:
        binary = _nginx()
        if binary is None:
            raise BenchError("nginx is not installed: `make bench` installs it (Debian package nginx-light)")
        self.plain = f"http://127.0.0.1:{(plain := free_port())}"
        self.sse = f"http://127.0.0.1:{(sse := free_port())}"
        (folder / "stream").write_bytes(b"".join(bodies.events()))
        config = folder / "nginx.conf"
        config.write_text(nginx_config(folder, plain, sse))
        self.child = Child(
            "nginx", [binary, "-c", str(config), "-e", str(folder / "nginx-error.log")], core=core, log=folder / "nginx.log"
        )

    def await_ready(self) -> None:
        self.child.await_ready(answers(f"{self.plain}/health"), seconds=10.0)


def nginx_version() -> str:
    """What the installed nginx calls itself."""
    binary = _nginx()
    if binary is None:
        return "not installed"
    done = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stderr.strip().rpartition("/")[2]


def _nginx() -> str | None:
    """Where it is: a plain user's PATH often lacks the folder that Debian puts it in."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def nginx_config(folder: Path, plain: int, sse: int) -> str:
    """The text of nginx.conf. As root, the worker stays root too: it must read a folder that only its owner may."""
    return _NGINX.format(
        user="user root;" if os.geteuid() == 0 else "",
        folder=folder,
        plain=plain,
        sse=sse,
        answer=bodies.answer().decode(),
        models=MODELS,
        chunk=bodies.CHUNK_BYTES,
    )


class Paced:
    """Our own upstream: fifty events over `seconds`, any number of streams at once; plain answers too."""

    def __init__(self, folder: Path, core: int, *, seconds: float = 1.0) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "sits.bench.paced_upstream", "--port", str(port), "--seconds", str(seconds)]
        self.child = Child("paced upstream", command, core=core, log=folder / "paced.log")

    def await_ready(self) -> None:
        self.child.await_ready(answers(f"{self.url}/health"), seconds=10.0)
