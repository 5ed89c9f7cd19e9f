#!/bin/sh
# The core's long checks: `make core-check`. Its tests on a build with AddressSanitizer and
# UndefinedBehaviorSanitizer, then on one that counts lines; both in copies under .bench.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
least_percent=${CORE_COVERAGE:-85}

copy() {  # a directory of its own for one build
    rm -rf "$1"
    mkdir -p "$1"
    cp -r nexuskv_core pyproject.toml README.md "$1"
    mkdir "$1/tests"
    cp tests/__init__.py "$1/tests"
    cp -r tests/core "$1/tests"
    rm -f "$1"/nexuskv_core/*.so "$1"/nexuskv_core/_*.c
}

build() {  # directory, flags
    (cd "$1" && CFLAGS="$2" LDFLAGS="$2" "$python" -c 'from setuptools import setup; setup()' \
        --quiet build_ext --inplace > build.log 2>&1) || { tail -40 "$1/build.log"; exit 1; }
}

echo "== warnings"
for file in nexuskv_core/arena/*.c; do
    cc -O2 -std=gnu11 -Wall -Wextra -Wsign-compare -Wshadow -Werror -fsyntax-only "$file"
done

echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
copy .bench/core-asan
build .bench/core-asan "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined"
preload="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)"
(cd .bench/core-asan && LD_PRELOAD="$preload" PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    "$python" -m pytest -q -p no:cacheprovider -o addopts= -o timeout=1200 \
    -k "not resident_memory_is_flat" `# the sanitizer keeps what was freed` \
    tests/core/test_blocks.py tests/core/test_blocks_machine.py \
    tests/core/test_blocks_beside_a_writer.py tests/core/test_side_by_side.py tests/core/test_scan.py \
    tests/core/test_plans.py)

echo "== line coverage"
copy .bench/core-coverage
build .bench/core-coverage "-O0 -g --coverage"
(cd .bench/core-coverage && "$python" -m pytest -q -p no:cacheprovider -o addopts= -o timeout=1200 \
    tests/core/test_blocks.py tests/core/test_blocks_machine.py tests/core/test_blocks_beside_a_writer.py)
cd .bench/core-coverage
objects=$(find build -name '*.gcda' | grep arena)
[ -n "$objects" ] || { echo "nothing was counted"; exit 1; }
# shellcheck disable=SC2086
gcov $objects 2>/dev/null | awk -v least="$least_percent" '
    /^File .nexuskv_core\/arena\/[a-z]+\.c/ { gsub(/\x27/, "", $2); file = $2; next }
    /^Lines executed/ && file != "" {
        split($2, part, ":"); sub(/%/, "", part[2]); printf "%-32s %6.2f%% of %s lines\n", file, part[2], $4
        lines += $4; hit += $4 * part[2] / 100; file = ""
    }
    END {
        percent = lines ? 100 * hit / lines : 0
        printf "%-32s %6.2f%% (at least %s%%)\n", "together", percent, least
        exit percent < least
    }'
