"""Makes the project's environment; run by the Makefile with whatever `python3` there is, standard library only.

    python3 requirements/install.py demo|test|core [--venv DIR]

Checks the platform, the Python, venv support and the free disk before the first download. Uses uv when it is
on PATH, else venv and pip. A stamp with the lists' hash makes a second run a matter of milliseconds; an
interrupted run leaves no stamp and is simply run again.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PROFILES = {
    "core": ["core"],
    "demo": ["core", "trainer", "engine", "agents"],
    "test": ["core", "trainer", "engine", "agents", "test"],
}
FREE_BYTES = {"core": 1 << 30, "demo": 9 << 30, "test": 9 << 30}
"""What the profile takes on disk, downloads and the package cache included."""


def fail(message):
    """One clear line, exit status 2."""
    sys.stderr.write("tracegrad: " + message + "\n")
    raise SystemExit(2)


def find_python():
    """A CPython 3.11: the newest pins are tested on it alone."""
    for name in ("python3.11", "python3", "python"):
        path = shutil.which(name)
        if path is None:
            continue
        probe = "import sys, platform; print(platform.python_implementation(), *sys.version_info[:2])"
        answer = subprocess.run([path, "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if answer.stdout.decode().split() == ["CPython", "3", "11"]:
            return path
    found = "%s %s" % (platform.python_implementation(), platform.python_version())
    return fail("expected CPython 3.11 on PATH (as python3.11 or python3), got %s; install Python 3.11" % found)


def check_machine(profile, venv):
    """Everything that can be known before the first download."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        fail("expected Linux x86_64, got %s %s; the pinned wheels exist for that platform only" % (system, machine))
    python = find_python()
    uv = shutil.which("uv")
    if uv is None:
        probe = [python, "-c", "import venv, ensurepip"]
        if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            fail("expected venv support in %s, got none; install the package python3.11-venv, or uv" % python)
    parent = os.path.dirname(os.path.abspath(venv))
    if not os.access(parent, os.W_OK):
        fail("expected a writable folder for the environment, got %s; choose another with VENV=DIR" % parent)
    free = shutil.disk_usage(parent).free
    if free < FREE_BYTES[profile] and not has_stamp(venv):
        need, got = FREE_BYTES[profile] / 2**30, free / 2**30
        fail("expected %.0f GiB free disk under %s, got %.1f GiB; free some, or choose VENV=DIR" % (need, parent, got))
    return python, uv


def wanted_stamp(profile):
    """Changes when a list, the project's metadata or the place changes."""
    digest = hashlib.sha256(ROOT.encode())
    for path in [os.path.join(HERE, name + ".txt") for name in PROFILES[profile]] + [
        os.path.join(ROOT, "pyproject.toml")
    ]:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def has_stamp(venv):
    """Whether some profile was installed to its end, so that most of the disk is already taken."""
    return any(os.path.exists(os.path.join(venv, ".tracegrad-" + name)) for name in PROFILES)


def is_ready(profile, venv):
    """Whether this profile, or one that contains it, is installed as pinned."""
    for name, lists in PROFILES.items():
        stamp = os.path.join(venv, ".tracegrad-" + name)
        if set(PROFILES[profile]) <= set(lists) and os.path.exists(stamp):
            with open(stamp) as file:
                if file.read() == wanted_stamp(name):
                    return True
    return False


def run(command):
    """Runs a step and shows its own progress; a failing one ends us with its name."""
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        fail("%s failed with status %d; see its message above, then run the same command again" % (command[0], code))


def install(profile, venv, python, uv):
    """Creates the environment and installs the pinned lists, then the project itself, editable."""
    lists = [os.path.join(HERE, name + ".txt") for name in PROFILES[profile]]
    flags = [flag for path in lists for flag in ("-r", path)]
    target = os.path.join(venv, "bin", "python")
    if uv is not None:
        if not os.path.exists(target):
            run([uv, "venv", "--python", python, venv])
        pip = [uv, "pip", "install", "--python", target, "--no-deps"]
    else:
        if not os.path.exists(target) or not is_module(target, "pip"):
            run([python, "-m", "venv", venv])
        pip = [target, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    run(pip + flags)
    run([*pip, "--no-build-isolation", "--editable", ROOT])


def is_module(python, name):
    """Whether a module can be imported there."""
    probe = [python, "-c", "import " + name]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def told(uv):
    """What installs, and what to expect of it: half of pip's time has no line."""
    if uv is not None:
        return "uv"
    return "pip: some minutes, the last half of them silent, while it unpacks what it names (uv would take seconds)"


def main():
    """Checks, then installs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=sorted(PROFILES))
    parser.add_argument("--venv", default=os.path.join(ROOT, ".venv"))
    arguments = parser.parse_args()
    if is_ready(arguments.profile, arguments.venv):
        return
    python, uv = check_machine(arguments.profile, arguments.venv)
    print("tracegrad: making %s for '%s' with %s" % (arguments.venv, arguments.profile, told(uv)), flush=True)
    install(arguments.profile, arguments.venv, python, uv)
    with open(os.path.join(arguments.venv, ".tracegrad-" + arguments.profile), "w") as file:
        file.write(wanted_stamp(arguments.profile))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("\ntracegrad: interrupted; run the same command again to go on\n")
        raise SystemExit(130) from None
