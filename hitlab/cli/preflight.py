"""`hitlab preflight`: what a server is, and whether it can be measured."""

import typer

from hitlab.cli import options as opt
from hitlab.cli import target


def command(
    engine: target.EngineName,
    base_url: target.BaseUrl = None,
    metrics_url: target.MetricsUrl = None,
    api_key_env: target.ApiKeyEnv = None,
    admin_key_env: target.AdminKeyEnv = None,
    timeout: target.Timeout = 30.0,
    as_json: opt.Json = False,
) -> None:
    """Say what a server is and whether it can be measured; sends one short prompt and empties nothing.

    Exit status: 0 measurable, 4 not.

    Example: hitlab preflight --engine vllm --base-url http://127.0.0.1:8000
    """
    import asyncio

    from hitlab.preflight import Finding, measurable, preflight
    from hitlab.session import Asked

    where = target.Target(
        engine=engine,
        base_url=base_url,
        metrics_urls=tuple(metrics_url or ()),
        asked=Asked(),
        api_key_env=api_key_env,
        admin_key_env=admin_key_env,
        timeout_s=timeout,
    )

    async def look() -> list[Finding]:
        with where.running() as url:
            async with where.client(url) as client:
                return await preflight(client)

    findings = asyncio.run(look())
    if as_json:
        opt.print_json({"measurable": measurable(findings), "findings": findings})
    else:
        marks = {True: "ok", False: "FAIL", None: "?"}
        for finding in findings:
            todo = f"; {finding.todo}" if finding.todo else ""
            print(f"{marks[finding.ok]:<5}{finding.name}: {finding.detail}{todo}")
    if not measurable(findings):
        raise typer.Exit(4)
