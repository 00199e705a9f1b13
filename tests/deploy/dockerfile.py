"""deploy/Dockerfile: its instructions, and the steps of its build stage as a script of the shell.

python -m tests.deploy.dockerfile FOLDER    # prints the script
"""

from __future__ import annotations

import re
import sys

from tests.deploy.manifests import DEPLOY, ROOT

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its arguments, with continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    pairs = (line.partition(" ") for line in joined.splitlines() if line)
    return [(name, rest) for name, _, rest in pairs]


def of(name: str) -> list[str]:
    return [rest for kind, rest in instructions() if kind == name]


def build_steps(folder: str) -> str:
    """The build stage as a script that has its absolute paths below a folder.

    It needs a Python with pip as `python` and `pip`, and the package index.
    """
    build = instructions()[: [name for name, _ in instructions()].index("FROM", 1)]
    lines = ["set -eu"]
    for name, rest in build[1:]:
        if name == "ARG":
            lines.append(f"export {rest}")
        elif name == "WORKDIR":
            lines.append(f"mkdir -p {folder}{rest} {folder}/tmp && cd {folder}{rest}")
        elif name == "COPY":
            *sources, target = rest.split()
            lines += [f"cp -R {ROOT / source} {copied_to(source, target)}" for source in sources]
        else:
            assert name == "RUN", name
            lines.append(
                re.sub(r"(?<=[ ,/])/(?=(?:wheels|tmp|opt)\b)", f"{folder}/", f" {rest}").strip()
            )
    return "\n".join(lines)


def copied_to(source: str, target: str) -> str:
    return target if (ROOT / source).is_dir() else f"{target.rstrip('/')}/"


if __name__ == "__main__":
    sys.stdout.write(build_steps(sys.argv[1]))
