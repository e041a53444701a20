"""A server of S3 for tests, at http://127.0.0.1:PORT: moto, which keeps objects in memory and honours conditions but
takes any signature, behind a check of each signature by botocore, which is what Amazon's own client signs with.

usage: s3_server.py PORT BUCKET ACCESS_KEY_ID SECRET_ACCESS_KEY
"""

import sys
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import run_simple

REGION = "us-east-1"
ACCOUNT = "123456789012"


def fault(environ, key, secret):
    """What is wrong with the signature of a request, as S3 would name it; None for a good one."""
    query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    try:
        signed = query["X-Amz-SignedHeaders"].split(";")
        who, _, region, service, _ = query["X-Amz-Credential"].split("/")
        date, seconds = query["X-Amz-Date"], int(query["X-Amz-Expires"])
        given = query["X-Amz-Signature"]
    except (KeyError, ValueError):
        return "AccessDenied"
    if who != key:
        return "InvalidAccessKeyId"
    if (region, service) != (REGION, "s3") or "host" not in signed:
        return "AuthorizationQueryParametersError"
    begun = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    if abs(datetime.now(timezone.utc) - begun) > timedelta(seconds=seconds):
        return "AccessDenied"
    headers = {
        name: environ.get("HTTP_" + name.upper().replace("-", "_"), environ.get(name.upper().replace("-", "_"), ""))
        for name in signed
        if name != "host"
    }
    path = environ["RAW_URI"].partition("?")[0]
    request = AWSRequest(environ["REQUEST_METHOD"], f"http://{environ['HTTP_HOST']}{path}", headers)
    request.context["timestamp"] = date
    credentials = Credentials(key, secret, query.get("X-Amz-Security-Token"))
    auth = S3SigV4QueryAuth(credentials, service, region, expires=seconds)
    auth._modify_request_before_signing(request)
    wanted = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return None if given == wanted else "SignatureDoesNotMatch"


def checked(application, key, secret):
    def answer(environ, start):
        code = fault(environ, key, secret)
        if code is None:
            return application(environ, start)
        start("403 Forbidden", [("content-type", "application/xml")])
        return [f"<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>".encode()]

    return answer


def main():
    port, bucket, key, secret = sys.argv[1:]
    s3_backends[ACCOUNT]["aws"].create_bucket(bucket, REGION)
    application = create_backend_app("s3")
    run_simple("127.0.0.1", int(port), checked(application, key, secret), threaded=True)


if __name__ == "__main__":
    main()
