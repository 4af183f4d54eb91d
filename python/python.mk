# The Python package. `make python` puts it together in $(BUILD)/python, where PYTHONPATH finds it;
# `pip install .` calls the same through python/backend. It needs the headers of any CPython from
# 3.11 on, and then serves all newer ones.

# The folder of the headers of PYTHON; empty if there are none, or it is too old.
PYTHON_HEADERS  = $(dir $(wildcard $(shell $(PYTHON) -c 'import sys, sysconfig; \
	sys.version_info >= (3, 11) and print(sysconfig.get_path("include"))' 2>/dev/null)/Python.h))
PACKAGE        := $(BUILD)/python/tcpx
# NIXL's backend, where there is a C++ compiler.
PACKAGE_NIXL   := $(if $(shell command -v $(CXX)),$(PACKAGE)/nixl/libplugin_TCPX.so)
PACKAGE_FILES  := $(patsubst python/tcpx/%,$(PACKAGE)/%,$(wildcard python/tcpx/*.py python/tcpx/*/*.py python/tcpx/*.pyi python/tcpx/py.typed))

# As headers of the system: their warnings are not ours.
$(BUILD)/obj/python/%.o: TCPX_CFLAGS += $(PYTHON_HEADERS:%=-isystem %)

# It uses a little more of the library than the public header shows, so it takes the objects, as the
# program does. nodelete: I/O threads must not outlive their code.
$(PACKAGE)/_tcpx.abi3.so: $(call objects_of,python/src/*.c) $(LIB_OBJECTS) python/src/module.map
	$(call link,-shared -Wl$(comma)-Bsymbolic -Wl$(comma)-z$(comma)nodelete \
		-Wl$(comma)--version-script=python/src/module.map)

$(PACKAGE)/bin/tcpx: $(BUILD)/tcpx
	@mkdir -p $(@D)
	@cp $< $@

$(PACKAGE)/nixl/%: $(BUILD)/%
	@mkdir -p $(@D)
	@cp $< $@

$(PACKAGE_FILES): $(PACKAGE)/%: python/tcpx/%
	@mkdir -p $(@D)
	@cp $< $@

.PHONY: python
python: $(PACKAGE)/_tcpx.abi3.so $(PACKAGE)/bin/tcpx $(PACKAGE_FILES) $(PACKAGE_NIXL)

.PHONY: check-python check-python-run
# Its tests, with every CPython from 3.11 on that is there, and those of the wheel.
check-python: $(RUNNER)
	@$(if $(PYTHON_HEADERS),$(MAKE) --no-print-directory check-python-run,$(RUNNER) \
		'skip python: $(PYTHON) is older than 3.11, or its headers are not installed (Debian: python3-dev)')

check-python-run: python $(RUNNER)
	@MAKEFLAGS= MAKELEVEL= BUILD='$(BUILD)' PYTHON='$(PYTHON)' CC='$(CC)' CFLAGS='$(CFLAGS)' LDFLAGS='$(LDFLAGS)' \
		WERROR='$(WERROR)' SANITIZE='$(SANITIZE)' RUNNER='$(RUNNER)' sh python/tests/run.sh

.PHONY: check-python-gpu
# The package with a real GPU, torch and cupy of PYTHON, without a network. Without them it skips, in words.
check-python-gpu: python
	@GPU_MODEL_GIB='$(or $(GPU_MODEL_GIB),10)' NCCL_SOCKET_IFNAME=lo PYTHONDONTWRITEBYTECODE=1 \
		PYTHONPATH='$(BUILD)/python:python/tests' $(PYTHON) python/tests/gpu.py

.PHONY: check-integrations
# tcpx inside of other programs, which are fetched: hundreds of MB for Ray alone, 6.5 GB with torch and LMCache.
INTEGRATIONS ?= ray==2.60.0 torch lmcache==0.5.6
check-integrations: $(RUNNER)
	@$(if $(PYTHON_HEADERS),$(MAKE) --no-print-directory check-integrations-run,$(RUNNER) \
		'skip integrations: $(PYTHON) is older than 3.11, or its headers are not installed (Debian: python3-dev)')

.PHONY: check-integrations-run
check-integrations-run: python $(RUNNER)
	@MAKEFLAGS= MAKELEVEL= BUILD='$(BUILD)' PYTHON='$(PYTHON)' RUNNER='$(RUNNER)' INTEGRATIONS='$(INTEGRATIONS)' \
		sh python/tests/integrations/run.sh
