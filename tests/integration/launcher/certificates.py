"""Short-lived certificates for tests, made by the openssl program."""

import subprocess

EC_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
LOCAL = "DNS:localhost,IP:127.0.0.1,IP:::1"


def openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, stdin=subprocess.DEVNULL, capture_output=True)


class Ca:
    """A CA in a folder of its own, and what it has issued: pairs of files, `name.crt` and `name.key`."""

    def __init__(self, folder, name="ca"):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.crt, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        openssl("req", "-x509", *EC_KEY, "-keyout", self.key, "-out", self.crt, "-days", 1, "-subj", f"/CN={name} of {folder.name}")

    def issue(self, name, names=LOCAL, days=1):
        """Makes the pair, or makes it anew: each file is replaced at once."""
        crt, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        request, new_key, new_crt = (self.folder / f"{name}.{kind}.new" for kind in ("csr", "key", "crt"))
        openssl("req", "-new", *EC_KEY, "-keyout", new_key, "-out", request, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}")
        openssl("x509", "-req", "-in", request, "-CA", self.crt, "-CAkey", self.key, "-days", days, "-copy_extensions", "copy",
                "-out", new_crt)
        new_key.chmod(0o600)
        new_key.rename(key)
        new_crt.rename(crt)
        return crt, key

    def options(self, name, **kwargs):
        """For a launcher with a certificate of its own, which is issued, and this CA."""
        crt, key = self.issue(name, **kwargs)
        return [f"--tls-cert={crt}", f"--tls-key={key}", f"--tls-ca={self.crt}"]
