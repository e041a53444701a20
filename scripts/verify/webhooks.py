"""Verifies signed requests with standardwebhooks, as scripts/verify/webhooks says."""

import base64
import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


def verifies(case):
    try:
        Webhook(case["key"]).verify(base64.b64decode(case["body"]), case["headers"])
        return True
    except WebhookVerificationError:
        return False


for line in sys.stdin:
    print(json.dumps(verifies(json.loads(line))))
