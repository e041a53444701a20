"""Makes the certificates anew that the tests of TLS use; needs the package cryptography.

Two authorities, and of the first one a receiver at 127.0.0.1, one by another name, and one whose
certificate has ended. The receivers' keys are secrets of nobody; those of the authorities are not kept.
"""

import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FOLDER = pathlib.Path(__file__).parent


def certificate(name, key, issuer, issuer_key, last_year, extensions):
    name_of = lambda text: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name_of(name))
        .issuer_name(name_of(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(last_year, 12, 31))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    made = builder.sign(issuer_key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM)
    (FOLDER / f"{name}.pem").write_bytes(pem)


def authority(name):
    key = ec.generate_private_key(ec.SECP256R1())
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    certificate(name, key, name, key, 2090, [is_authority])
    return key


def receiver(name, alternative, last_year, issuer_key):
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([alternative])
    certificate(name, key, "authority", issuer_key, last_year, [alternatives])
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (FOLDER / f"{name}.key").write_bytes(pem)


issuer_key = authority("authority")
authority("other")
loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
receiver("good", loopback, 2090, issuer_key)
receiver("wrong-name", x509.DNSName("shop.example"), 2090, issuer_key)
receiver("expired", loopback, 2021, issuer_key)
