"""Runs code with the unchanged GkeCodeExecutor of google-adk in a sandbox; argument: the namespace."""

import logging
import sys

from google.adk.code_executors.code_execution_utils import CodeExecutionInput
from google.adk.code_executors.gke_code_executor import GkeCodeExecutor

logging.basicConfig(level=logging.WARNING)
executor = GkeCodeExecutor(executor_type="sandbox", namespace=sys.argv[1], sandbox_template="plain")
result = executor.execute_code(None, CodeExecutionInput(code="import socket\nprint(6 * 7, socket.gethostname())"))
answer, hostname = result.stdout.split()
assert answer == "42" and hostname.startswith("sandbox-claim-"), result
failed = executor.execute_code(None, CodeExecutionInput(code="raise ValueError('on purpose')"))
assert "on purpose" in failed.stderr, failed
print("all good")
