"""One S3 operation by boto3 for each run: boto3_client.py OPERATION ARGUMENT...

The endpoint, the addressing style and the keys come from the environment. What an operation
answers is printed as JSON.
"""

import json
import os
import socket
import sys

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

TRANSFER = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=5 << 20, max_concurrency=4)


def connect():
    url = os.environ["CLIENTTEST_ENDPOINT"]
    style = os.environ["CLIENTTEST_STYLE"]
    if style == "virtual":
        url = url.replace("127.0.0.1", "localhost")
        resolve = socket.getaddrinfo

        def loopback(host, *args, **kwargs):
            return resolve("127.0.0.1" if host.endswith("localhost") else host, *args, **kwargs)

        socket.getaddrinfo = loopback
    config = Config(signature_version="s3v4", s3={"addressing_style": style}, retries={"max_attempts": 1})
    return boto3.client("s3", endpoint_url=url, config=config)


def make_bucket(s3, bucket):
    s3.create_bucket(Bucket=bucket)


def empty_bucket(s3, bucket):
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        keys = [{"Key": entry["Key"]} for entry in page.get("Contents", [])]
        if not keys:
            continue
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys})
        assert not answer.get("Errors"), answer["Errors"]
        assert len(answer["Deleted"]) == len(keys), answer


def remove_bucket(s3, bucket):
    s3.delete_bucket(Bucket=bucket)


def put(s3, bucket, key, file):
    s3.upload_file(file, bucket, key, ExtraArgs={"Metadata": {"source": "boto3"}}, Config=TRANSFER)
    head = s3.head_object(Bucket=bucket, Key=key)
    assert head["ContentLength"] == os.path.getsize(file), head
    assert head["Metadata"] == {"source": "boto3"}, head


def put_tree(s3, bucket, prefix, directory):
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.path.join(folder, name)
            with open(file, "rb") as body:
                s3.put_object(Bucket=bucket, Key=prefix + os.path.relpath(file, directory), Body=body)


def get(s3, bucket, key, file):
    s3.download_file(bucket, key, file, Config=TRANSFER)


def get_range(s3, bucket, key, byte_range, file):
    answer = s3.get_object(Bucket=bucket, Key=key, Range=byte_range)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206, answer
    with open(file, "wb") as out:
        out.write(answer["Body"].read())


def list_objects(s3, bucket, prefix, delimiter):
    keys, prefixes = [], []
    for operation in ("list_objects", "list_objects_v2"):
        found, groups = [], []
        for page in s3.get_paginator(operation).paginate(Bucket=bucket, Prefix=prefix, Delimiter=delimiter):
            found += [entry["Key"] for entry in page.get("Contents", [])]
            groups += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        assert operation == "list_objects" or (found, groups) == (keys, prefixes), "the two listings differ"
        keys, prefixes = found, groups
    return {"Keys": keys, "Prefixes": prefixes}


def copy(s3, bucket, source, target):
    s3.copy({"Bucket": bucket, "Key": source}, bucket, target, Config=TRANSFER)


def delete(s3, bucket, key):
    s3.delete_object(Bucket=bucket, Key=key)


def presign(s3, method, bucket, key):
    return s3.generate_presigned_url(method, Params={"Bucket": bucket, "Key": key}, ExpiresIn=300)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](connect(), *sys.argv[2:])))
