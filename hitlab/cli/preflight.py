"""`hitlab preflight`: what a server is, and whether it can be measured."""

import typer

from hitlab.cli import _options as opt
from hitlab.cli import _server_options as given
from hitlab.cli import _target
from hitlab.measurement.asked import Asked
from hitlab.measurement.preflight import Finding, measurable, preflight


def command(
    engine: given.EngineName,
    base_url: given.BaseUrl = None,
    metrics_url: given.MetricsUrl = None,
    api_key_env: given.ApiKeyEnv = None,
    admin_key_env: given.AdminKeyEnv = None,
    timeout: given.Timeout = 30.0,
    as_json: opt.Json = False,
) -> None:
    """Say what a server is and whether it can be measured; sends one short prompt and empties nothing.

    Exit status: 0 measurable, 4 not.

    Example: hitlab preflight --engine vllm --base-url http://127.0.0.1:8000
    """
    where = _target.Target(
        engine=engine,
        base_url=base_url,
        metrics_urls=tuple(metrics_url or ()),
        asked=Asked(),
        api_key_env=api_key_env,
        admin_key_env=admin_key_env,
        timeout_s=timeout,
    )

    with where.connected() as (loop, client):
        findings = loop.run(preflight(client))
        addresses = [client.base_url, *client.metrics_urls]
    if as_json:
        opt.print_json({"measurable": measurable(findings), "findings": findings})
    else:
        marks = {True: "ok", False: "FAIL", None: "?"}
        for finding in findings:
            todo = f"; {finding.todo}" if finding.todo else ""
            print(f"{marks[finding.ok]:<5}{finding.name}: {finding.detail}{todo}")
        print(_last_line(findings, where, addresses))
    if not measurable(findings):
        raise typer.Exit(4)


def _last_line(findings: list[Finding], where: _target.Target, addresses: list[str]) -> str:
    """What to do now; `addresses` are the server's and those of its metrics, without passwords."""
    failed = sum(finding.ok is False for finding in findings)
    if failed:
        return f"not measurable: {failed} finding{'s' if failed > 1 else ''}"
    base_url, *metrics_urls = addresses
    options = [f"--metrics-url {url}" for url in metrics_urls if where.metrics_urls]
    for option, variable in (("--api-key-env", where.api_key_env), ("--admin-key-env", where.admin_key_env)):
        options += [f"{option} {variable}"] if variable else []
    return " ".join([f"measurable; next: hitlab measure --engine {where.engine} --base-url {base_url}", *options])
