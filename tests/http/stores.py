"""Places that replicas share, as real servers on the loopback interface."""

import pathlib
import shutil
import subprocess
import tempfile

import bamtest
import gateways
import pypi

_CREATE_BUCKET = """
import json, sys, boto3
def client(service):
    return boto3.client(service, endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
iam = client("iam")
client("s3").create_bucket(Bucket="prefixes")
iam.create_user(UserName="bam")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="bam", PolicyName="all", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="bam")["AccessKey"]
print(key["AccessKeyId"], key["SecretAccessKey"])
"""


class Redis(gateways.Process):
    """redis-server with a password."""

    def __init__(self):
        if not shutil.which("redis-server"):
            gateways.skip_loudly("no redis-server here (apt-get install redis-server)")
        self.folder = tempfile.TemporaryDirectory()
        self.port = gateways.free_port()
        super().__init__(["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", self.folder.name,
                          "--requirepass", "sesame"])
        self.place, self.environment = f"redis:127.0.0.1:{self.port}/test", {"REDISCLI_AUTH": "sesame"}
        bamtest.wait_until(lambda: "Ready to accept connections" in self.log(), "redis-server is there")

    def close(self):
        self.kill()
        self.folder.cleanup()


class S3(gateways.Process):
    """moto's S3 from PyPI, which checks signatures."""

    def __init__(self):
        python = pathlib.Path(pypi.python_with("moto[server]"))
        self.port = gateways.free_port()
        url = f"http://127.0.0.1:{self.port}"
        # The four calls that make the bucket and the key are not checked, all others are.
        super().__init__([str(python.parent / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)],
                         {"PATH": "/usr/bin:/bin", "INITIAL_NO_AUTH_ACTION_COUNT": "4"})
        bamtest.wait_until(lambda: gateways.request(self.port, "GET", "/moto-api/").status == 200, "moto answers")
        made = subprocess.run([str(python), "-c", _CREATE_BUCKET, url], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr + self.log()
        key, secret = made.stdout.split()
        self.place = "s3:prefixes/replicas"
        self.environment = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}

    close = gateways.Process.kill
