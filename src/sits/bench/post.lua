-- wrk script of `sits bench gateway`: wrk ... -s post.lua URL -- BODY_FILE HEADER=VALUE ...
-- Sends the file as the body of every request, and prints one line of JSON at the end.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = "application/json"
  for i = 2, #args do
    local name, value = args[i]:match("^([^=]+)=(.*)$")
    wrk.headers[name] = value
  end
  ready = wrk.format()
end

function request()
  return ready
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'SITS {"requests":%d,"microseconds":%d,"bytes":%d,"status":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d,"p50":%.1f,"p99":%.1f}\n',
    summary.requests, summary.duration, summary.bytes, e.status, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
