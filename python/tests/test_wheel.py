"""The wheel and the source archive: built without a network, tagged as they are, installed, run."""

import ast
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import tap

BUILD = os.environ["BUILD"]
# The installed package, not the one that make has put together; and no compiler's job server.
CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
CLEAN |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(*command, **options):
    ended = subprocess.run(command, capture_output=True, text=True, env=CLEAN, **options)
    if ended.returncode != 0:
        raise AssertionError(f"{command}: {ended.stdout}\n{ended.stderr}")
    return ended.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if importlib.util.find_spec("pip") is None:
            raise unittest.SkipTest("pip is not installed")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        at = cls.folder.name
        run(sys.executable, "-m", "pip", "wheel", "-q", ".", "-C", f"build={BUILD}", "-w", at)
        (cls.wheel,) = glob.glob(f"{at}/tcpx-*.whl")
        run(sys.executable, "-m", "pip", "install", "-q", "--target", f"{at}/site", cls.wheel)

    def python(self, *arguments):
        """With the installed package."""
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder.name,
            env={**CLEAN, "PYTHONPATH": f"{self.folder.name}/site"},
        )

    def test_tag(self):
        """one wheel for 3.11 and newer, with the version of the header"""
        with open("include/tcpx.h") as header:
            version = ".".join(re.findall(r"TCPX_VERSION_\w+ (\d+)", header.read()))
        name = os.path.basename(self.wheel)
        self.assertRegex(name, rf"^tcpx-{version}-cp311-abi3-(manylinux_2_\d+|linux)_\w+\.whl$")
        self.assertEqual(self.python("-c", "import tcpx; print(tcpx.__version__)").stdout, version + "\n")

    def test_content(self):
        """every file has its hash, and there are those that types and programs need"""
        with zipfile.ZipFile(self.wheel) as wheel:
            names = set(wheel.namelist())
            self.assertIsNone(wheel.testzip())
            (record,) = (n for n in names if n.endswith("RECORD"))
            listed = {line.split(",")[0] for line in wheel.read(record).decode().splitlines()}
        self.assertEqual(names, listed)
        for name in ("__init__.pyi", "py.typed", "_tcpx.abi3.so", "bin/tcpx", "__main__.py", "integrations/ray.py"):
            self.assertIn(f"tcpx/{name}", names)

    def test_auditwheel(self):
        """auditwheel agrees with the platform tag, and finds no library that is not in it"""
        if importlib.util.find_spec("auditwheel") is None:
            self.skipTest("auditwheel is not installed")
        said = " ".join(run(sys.executable, "-m", "auditwheel", "show", self.wheel).split())
        tag = re.search(r"(manylinux_\w+|linux_\w+)\.whl", self.wheel)[1]
        self.assertIn(f'consistent with the following platform tag: "{tag}"', said)
        self.assertNotIn("requires libraries", said)

    def test_symbols(self):
        """the module shows one symbol, and uses none that only one version of Python has"""
        module = f"{self.folder.name}/site/tcpx/_tcpx.abi3.so"
        shown = run("nm", "-D", "--defined-only", module)
        self.assertEqual(re.findall(r" T (\w+)", shown), ["PyInit__tcpx"])
        private = re.findall(r" U (_Py\w+)", run("nm", "-D", "--undefined-only", module))
        stable = {"_Py_Dealloc", "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct"}
        # Those of PY_SSIZE_T_CLEAN are in it, too, under the names that they had before 3.13.
        self.assertLessEqual({name for name in private if not name.endswith("_SizeT")}, stable)

    def test_program(self):
        """python -m tcpx is the program, with its arguments and its status"""
        said = self.python("-m", "tcpx", "devices")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("GPU", said.stdout)
        wrong = self.python("-m", "tcpx", "nonsense")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("nonsense", wrong.stderr)

    def test_nixl(self):
        """python -m tcpx nixl puts the backend where a NIXL looks for it, or says what there is not"""
        without = self.python("-m", "tcpx", "nixl")
        self.assertEqual(without.returncode, 1)
        self.assertRegex(without.stderr, "has no NIXL|no C[+][+] compiler")
        if not os.path.exists(f"{self.folder.name}/site/tcpx/nixl"):
            self.skipTest("there is no C++ compiler")
        site = f"{self.folder.name}/site"
        for name in ("nixl_cu12", "nixl_cu13"):
            plugins = f"{site}/.{name}.mesonpy.libs/plugins"
            os.makedirs(plugins)
            os.makedirs(f"{site}/{name}")
        for _ in range(2):
            said = self.python("-m", "tcpx", "nixl")
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertIn("NIXL has the backend TCPX", said.stdout)
        for name in ("nixl_cu12", "nixl_cu13"):
            self.assertEqual(os.listdir(f"{site}/.{name}.mesonpy.libs/plugins"), ["libplugin_TCPX.so"])
        shown = run("nm", "-D", "--defined-only", f"{plugins}/libplugin_TCPX.so")
        self.assertIn("nixl_plugin_init", shown)

    def test_help(self):
        """help(tcpx) teaches by an example, and every call has a text and a signature"""
        said = self.python("-c", "import tcpx; help(tcpx)").stdout
        for words in ("session.receive(array).wait()", "send(self, /, object, tag=0, *, after=None)"):
            self.assertIn(words, said)
        undocumented = self.python(
            "-c",
            "import inspect, tcpx\n"
            "for name in tcpx.__all__:\n"
            "    thing = getattr(tcpx, name)\n"
            "    assert thing.__doc__, name\n"
            "    assert thing.__module__ == 'tcpx', name\n"
            "    for member, value in vars(thing).items() if isinstance(thing, type) else ():\n"
            "        if not member.startswith('_') and member != 'result':\n"
            "            assert value.__doc__, (name, member)\n"
            "            if callable(value): inspect.signature(value)\n",
        )
        self.assertEqual(undocumented.stderr, "")

    def test_stubs(self):
        """the types name what there is, with the same arguments"""
        with open("python/tcpx/__init__.pyi") as file:
            tree = ast.parse(file.read())
        said = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                said[node.name] = {
                    f.name: [a.arg for a in f.args.posonlyargs + f.args.args + f.args.kwonlyargs if a.arg != "self"]
                    for f in node.body
                    if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")
                }
            elif isinstance(node, ast.FunctionDef):
                said[node.name] = [a.arg for a in node.args.args + node.args.kwonlyargs]
        code = (
            "import inspect, json, tcpx\n"
            "def names(f): return [p for p in inspect.signature(f).parameters if p != 'self'] if callable(f) else []\n"
            "print(json.dumps({n: {m: names(v) for m, v in vars(getattr(tcpx, n)).items()\n"
            "    if not m.startswith('_') and m != 'result'} if isinstance(getattr(tcpx, n), type)\n"
            "    else names(getattr(tcpx, n)) for n in tcpx.__all__}))"
        )
        there = self.python("-c", code)
        self.assertEqual(there.stderr, "")
        self.assertEqual(json.loads(there.stdout), said)

    def test_source_archive(self):
        """the source archive has what a wheel is made of, and nothing that was built"""
        sys.path.insert(0, "python/backend")
        import tcpx_build

        name = tcpx_build.build_sdist(self.folder.name)
        with tarfile.open(f"{self.folder.name}/{name}") as archive:
            names = {n.split("/", 1)[1] for n in archive.getnames()}
        for needed in ("PKG-INFO", "pyproject.toml", "Makefile", "include/tcpx.h", "python/src/module.c"):
            self.assertIn(needed, names)
        self.assertFalse([n for n in names if n.startswith("build/") or n.endswith((".o", ".so"))])

    def test_compiles(self):
        """all Python of the repository compiles without a warning"""
        for folder in ("python", "examples"):
            run(sys.executable, "-W", "error", "-c", "import sys, pathlib\n"
                "for f in pathlib.Path(sys.argv[1]).rglob('*.py'): compile(f.read_text(), f, 'exec')", folder)


if __name__ == "__main__":
    tap.main()
