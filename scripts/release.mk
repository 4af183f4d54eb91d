# What a release consists of: archives and packages. Each is made in a folder that has nothing else, and
# tried out there.

# What git tracks at HEAD, with the time of that commit: everybody who makes it gets the same bytes.
RELEASE := tcpx-$(VERSION)
.PHONY: archive
archive:
	@test -e .git || { echo 'the source archive is made of a git clone, which this is not' >&2; exit 1; }
	@test -z "$$(git status --porcelain --untracked-files=no)" || \
		echo 'what is not committed is not in the source archive' >&2
	@mkdir -p dist
	git -c tar.umask=0022 archive --prefix=$(RELEASE)/ HEAD | xz -T1 >dist/$(RELEASE).new
	@mv dist/$(RELEASE).new dist/$(RELEASE).tar.xz

# $(call unpacked,folder): the archive, where nothing else is.
unpacked = rm -rf $(1) && mkdir -p $(1) && tar -xJf dist/$(RELEASE).tar.xz -C $(1)

.PHONY: dist
dist: archive $(RUNNER)
	@$(call unpacked,build/dist)
	@PYTHON='$(PYTHON)' scripts/make-dist.sh dist build/dist/$(RELEASE)
	@MAKEFLAGS= MAKELEVEL= PYTHON='$(PYTHON)' $(RUNNER) 'dist@600: sh tests/packages/dist.sh dist build/dist/$(RELEASE)'

.PHONY: deb
deb: archive $(RUNNER)
	@PACKAGES=1 $(MAKE) --no-print-directory deps
	@$(call unpacked,build/deb)
	@scripts/make-deb.sh dist build/deb/$(RELEASE)
	@MAKEFLAGS= MAKELEVEL= $(RUNNER) 'deb@600: sh tests/packages/deb.sh dist'
