"""External metrics of Kubernetes out of Prometheus, as a pod behind an APIService serves them.

The HorizontalPodAutoscaler of the cluster asks for a metric of a namespace; the answer is the sum
of the series of that name and namespace. Its arguments: URL of Prometheus, certificate, key.
"""

import json
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

GROUP = "external.metrics.k8s.io/v1beta1"
PROMETHEUS, CERTIFICATE, KEY = sys.argv[1:]


def value_of(namespace: str, metric: str) -> dict[str, object]:
    """ExternalMetricValueList; empty where Prometheus has no sample."""
    query = urlencode({"query": f'sum({{__name__="{metric}",namespace="{namespace}"}})'})
    with urlopen(f"{PROMETHEUS}/api/v1/query?{query}", timeout=5) as answer:
        rows = json.load(answer)["data"]["result"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    items = [
        {
            "metricName": metric,
            "metricLabels": {},
            "timestamp": now,
            "value": f"{round(float(row['value'][1]) * 1000)}m",
        }
        for row in rows
    ]
    return {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": items}


class Handler(BaseHTTPRequestHandler):
    """`/apis/GROUP` for discovery, `/apis/GROUP/namespaces/NAMESPACE/METRIC` for a value."""

    def do_GET(self) -> None:
        words = urlsplit(self.path).path.strip("/").split("/")
        if words[3:4] == ["namespaces"]:
            found = value_of(words[4], words[5])
        else:
            resource = {"name": "metrics", "namespaced": True, "kind": "ExternalMetricValueList"}
            resources = [{"singularName": "", "verbs": ["get"], **resource}]
            found = {"kind": "APIResourceList", "groupVersion": GROUP, "resources": resources}
        body = json.dumps({"apiVersion": "v1", **found}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
