"""The image's build, carried out in a plain folder with this machine's interpreter."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from tests.deploy.dockerfile import DockerIgnore, parse_copy, parse_stages

ROOT = Path(__file__).resolve().parents[2]
STAGES = parse_stages((ROOT / "Dockerfile").read_text())
BUILD, RUNTIME = STAGES
IGNORE = DockerIgnore((ROOT / ".dockerignore").read_text())
# Steps that only an image has use for; every other RUN is carried out.
OF_THE_IMAGE = re.compile(
    r"apt-get update .*|python -m venv /opt/venv|useradd .*|install -d .*"
    r"|/opt/venv/bin/pip install --require-hashes .*"
)


def copies(stage):
    return [parse_copy(argument) for argument in stage.arguments("COPY")]


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("app/main.py", False),
        ("app/cli/replay.py", False),
        ("nexuskv_core/_index.pyx", False),
        ("nexuskv_core/arena/read.c", False),
        ("nexuskv_core/_index.c", True),
        ("nexuskv_core/_index.cpython-311-x86_64-linux-gnu.so", True),
        ("app/cli/__pycache__/replay.cpython-311.pyc", True),
        ("migrations/versions/x.py", False),
        ("requirements.lock", False),
        (".git/config", True),
        (".env", True),
        ("tests/conftest.py", True),
        (".venv/bin/python", True),
        ("data/key", True),
    ],
)
def test_the_build_context_holds_the_sources_and_nothing_else(path, ignored):
    assert IGNORE.ignores(Path(path)) is ignored


def test_every_source_of_a_copy_exists_in_the_build_context():
    sources = [s for stage in STAGES for c in copies(stage) if c.stage is None for s in c.sources]
    assert sources
    for source in sources:
        assert IGNORE.files_below(ROOT, source), f"COPY {source} finds nothing"


def test_the_runtime_has_no_compiler_and_no_root():
    runs = " ".join(RUNTIME.arguments("RUN"))
    assert not re.search(r"apt-get|pip |gcc|\bcc\b", runs)
    (user,) = RUNTIME.arguments("USER")
    assert int(user) >= 1000, "a number, so that an orchestrator can see that it is not root"
    assert f"--uid {user}" in runs
    assert BUILD.image == RUNTIME.image


def test_dependencies_come_from_the_lock_with_hashes():
    installs = [run for run in BUILD.arguments("RUN") if "pip install" in run]
    assert all("--require-hashes" in run or "--no-deps" in run for run in installs)
    lock = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    unhashed = [line for line in lock.splitlines() if "==" in line and "--hash=sha256:" not in line]
    assert unhashed == []


def test_the_service_is_process_one_and_its_health_is_liveness():
    assert RUNTIME.exec_form("ENTRYPOINT") == ["nexuskv"]
    assert RUNTIME.exec_form("CMD")[0] == "serve"
    (port,) = RUNTIME.arguments("EXPOSE")
    (health,) = RUNTIME.arguments("HEALTHCHECK")
    assert f"http://127.0.0.1:{port}/livez" in health
    assert health.partition("CMD ")[2].startswith('["python", "-c"')


class Image:
    """A folder that stands for the image's file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def run(self, stage) -> None:
        workdir = "/"
        for instruction, argument in stage.steps:
            if instruction == "WORKDIR":
                workdir = argument
                self.path(workdir).mkdir(parents=True, exist_ok=True)
            elif instruction == "COPY":
                self._copy(argument, workdir)
            elif instruction == "RUN" and not OF_THE_IMAGE.fullmatch(argument):
                self._shell(argument, workdir)

    def _copy(self, argument: str, workdir: str) -> None:
        copy = parse_copy(argument)
        if copy.stage is not None:
            # One folder holds both stages: the file is where the earlier one made it.
            assert copy.sources == [copy.target]
            return
        target = self.path(str(PurePosixPath(workdir) / copy.target))
        for source in copy.sources:
            base = ROOT / source if source.endswith("/") else (ROOT / source).parent
            for file in IGNORE.files_below(ROOT, source):
                placed = target / (ROOT / file).relative_to(base)
                placed.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, placed)

    def _shell(self, command: str, workdir: str) -> None:
        here = command.replace("/opt/venv/bin/pip", f"{sys.executable} -m pip")
        here = here.replace("/srv/", f"{self.path('/srv')}/")
        # The builder image fetches Cython and setuptools; here they are at hand.
        here = here.replace("pip wheel", "pip wheel --quiet --no-build-isolation")
        finished = subprocess.run(
            here, shell=True, cwd=self.path(workdir), capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, f"{command}\n{finished.stdout}{finished.stderr}"

    def execute(self, *command: str) -> str:
        """Run a program with the environment that the image sets."""
        environment = {
            "PATH": f"{self.path('/srv/nexuskv/bin')}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.path("/srv/nexuskv")),
            "LC_ALL": "C.UTF-8",
        }
        finished = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Both stages carried out; compiling the index takes most of the time."""
    built = Image(tmp_path_factory.mktemp("image"))
    for stage in STAGES:
        built.run(stage)
    return built


def test_the_package_and_its_compiled_index_come_from_the_image(image):
    program = (
        "import app, nexuskv_core, pathlib;"
        "print(pathlib.Path(app.__file__).parent.parent,"
        " pathlib.Path(nexuskv_core.__file__).parent.parent, nexuskv_core.IMPLEMENTATION)"
    )
    place = str(image.path("/srv/nexuskv"))
    assert image.execute(sys.executable, "-c", program).split() == [place, place, "compiled"]


def test_the_command_starts(image):
    assert "serve" in image.execute("nexuskv", "--help")


@pytest.mark.parametrize("folder", ["migrations", "policies", "openapi"])
def test_data_folders_stand_beside_the_package(image, folder):
    assert any(image.path(f"/srv/nexuskv/{folder}").iterdir())


def test_no_source_of_the_index_and_no_test_is_shipped(image):
    shipped = {path.suffix for path in image.path("/srv/nexuskv").rglob("*") if path.is_file()}
    assert ".c" not in shipped
    assert ".so" in shipped
    assert not image.path("/srv/nexuskv/tests").exists()
