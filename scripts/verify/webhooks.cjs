// Verifies signed requests with standardwebhooks or svix, as scripts/verify/webhooks says.
"use strict";

const crypto = require("node:crypto");
const { createRequire } = require("node:module");
const readline = require("node:readline");

const [home, library] = process.argv.slice(2);
const { Webhook } = createRequire(`${home}/`)(library);

// What stands before the 32 bytes of an Ed25519 public key in its DER form (RFC 8410).
const ED25519_DER = Buffer.from("302a300506032b6570032100", "hex");

// Standard Webhooks, "Signature scheme", by hand: any of the signatures of version v1a.
function verifiesAsymmetric(key, headers, body) {
  const raw = Buffer.from(key.slice("whpk_".length), "base64");
  const publicKey = crypto.createPublicKey({
    key: Buffer.concat([ED25519_DER, raw]),
    format: "der",
    type: "spki",
  });
  const head = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`;
  const signed = Buffer.concat([Buffer.from(head), body]);
  return headers["webhook-signature"]
    .split(" ")
    .filter((signature) => signature.startsWith("v1a,"))
    .some((signature) =>
      crypto.verify(null, signed, publicKey, Buffer.from(signature.slice(4), "base64")),
    );
}

function verifies({ key, headers, body }) {
  const bytes = Buffer.from(body, "base64");
  if (key.startsWith("whpk_")) {
    return verifiesAsymmetric(key, headers, bytes);
  }
  try {
    new Webhook(key).verify(bytes.toString("utf8"), headers);
    return true;
  } catch (error) {
    if (error.name === "WebhookVerificationError" || /signature|timestamp/i.test(error.message)) {
      return false;
    }
    throw error;
  }
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => console.log(JSON.stringify(verifies(JSON.parse(line)))));
