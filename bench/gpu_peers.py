"""What torch.compile and Triton take for the kernels of logical/benches/device.rs, as bench/gpu runs it:

    python3 bench/gpu_peers.py [MIB,…]       sizes in MiB of f32, or 64

Prints the same table, of the same bytes: what must be read and written, beside a copy right before. Where no library has
a kernel, it is written here as a user would write it: arithmetic, casts, block u8 and signs for torch.compile, block u8
for Triton, too, and torch.topk for top-k. Without torch or a GPU it says "skipped" and why; `cpu` in front of the sizes
tries all that does not need one, at one round."""
import statistics
import sys
import time

ROUNDS, BLOCK = 11, 2048

try:
    import torch
except ImportError:
    print("skipped: no torch")
    sys.exit(0)

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def main():
    words = sys.argv[1:]
    on_cpu = words[:1] == ["cpu"]
    sizes = [float(size) for size in (words[on_cpu:] or ["64"])[0].split(",")]
    if not on_cpu and not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return
    device = "cpu" if on_cpu else "cuda"
    name = device if on_cpu else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}\n\n| work | MiB | GB/s | copy GB/s | of a copy |\n|---|---|---|---|---|")
    for size in sizes:
        for line in lines(device, int(size * 2**18) // BLOCK * BLOCK):
            measure(size, on_cpu, *line)


def lines(device, count):
    """Yields what is measured of so many f32: a name, the f32 that are copied beside it, bytes, and the work."""
    x = torch.randn(count, device=device)
    y = torch.randn(count, device=device)
    half = x.to(torch.bfloat16).repeat(2)
    other = y.to(torch.bfloat16).repeat(2)
    compiled = torch.compile
    yield "sum", x, 12 * count, call(compiled(lambda to, x: to.add_(x)), y, x)
    yield "sum of bf16", x, 12 * count, call(compiled(lambda to, x: to.add_(x)), other, half)
    yield "min of bf16", x, 12 * count, call(compiled(lambda to, x: torch.minimum(to, x)), other, half)
    yield "scale", x, 8 * count, call(compiled(lambda to: to.mul_(0.999)), y)
    for dtype in (torch.float16, torch.bfloat16):
        short = x.to(dtype)
        word = str(dtype).removeprefix("torch.")
        yield f"{word}: encode", x, 6 * count, call(compiled(lambda x, dtype=dtype: x.to(dtype)), x)
        yield f"{word}: decode-add", x, 10 * count, call(compiled(lambda to, x: to.add_(x.float(), alpha=1e-3)), y, short)
    coded = 5 * count + 8 * count // BLOCK
    yield "block u8: encode", x, coded, call(compiled(block_u8), x)
    codes, low, high = block_u8(x)
    yield "block u8: decode-add", x, coded + 4 * count, call(compiled(add_block_u8), y, codes, low, high)
    if triton and device == "cuda":
        yield from triton_lines(x, y, coded)
    yield "sign: encode", x, 4 * count + count // 8, call(compiled(signs), x)
    yield "top-k(1%): encode", x, 4 * count + count // 100 * 8, call(top_k, x)


def call(work, *arguments):
    return lambda: work(*arguments)


def block_u8(x):
    """Returns eight bits for each number, relative to the range of its block, and the ranges."""
    blocks = x.view(-1, BLOCK)
    low, high = blocks.aminmax(dim=1, keepdim=True)
    codes = ((blocks - low) * (255.0 / (high - low))).round().clamp(0, 255).to(torch.uint8)
    return codes, low, high


def add_block_u8(to, codes, low, high):
    return to.view(-1, BLOCK).add_(low + codes.float() * ((high - low) / 255.0), alpha=1e-3)


def signs(x):
    """Returns a bit for each number and the mean magnitudes of blocks."""
    bits = (x.view(-1, 8) < 0).to(torch.uint8)
    shifts = torch.arange(8, device=x.device, dtype=torch.uint8)
    return (bits << shifts).sum(dim=1, dtype=torch.uint8), x.view(-1, BLOCK).abs().mean(dim=1)


def top_k(x):
    places = torch.topk(x.abs(), x.numel() // 100, sorted=False).indices
    return places, x[places]


if triton:

    @triton.jit
    def encode_block(x, codes, ranges, SIZE: tl.constexpr):
        block = tl.program_id(0)
        at = block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
        value = tl.load(x + at)
        low = tl.min(value, axis=0)
        high = tl.max(value, axis=0)
        steps = (value - low) * (255.0 / (high - low)) + 0.5
        tl.store(codes + at, tl.minimum(tl.maximum(steps, 0.0), 255.0).to(tl.uint8))
        tl.store(ranges + 2 * block, low)
        tl.store(ranges + 2 * block + 1, high)

    @triton.jit
    def add_block(to, codes, ranges, SIZE: tl.constexpr):
        block = tl.program_id(0)
        at = block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
        low = tl.load(ranges + 2 * block)
        high = tl.load(ranges + 2 * block + 1)
        value = low + tl.load(codes + at).to(tl.float32) * ((high - low) / 255.0)
        tl.store(to + at, tl.load(to + at) + 1e-3 * value)


def triton_lines(x, y, coded):
    """Yields block u8 in Triton, with a program for each block."""
    codes = torch.empty(x.numel(), dtype=torch.uint8, device=x.device)
    ranges = torch.empty(x.numel() // BLOCK * 2, device=x.device)
    blocks = (x.numel() // BLOCK,)
    encode = lambda: encode_block[blocks](x, codes, ranges, SIZE=BLOCK)
    add = lambda: add_block[blocks](y, codes, ranges, SIZE=BLOCK)
    yield "block u8 in Triton: encode", x, coded, encode
    yield "block u8 in Triton: decode-add", x, coded + 4 * x.numel(), add


def measure(size, on_cpu, what, copied, count, work):
    """Prints the line of work that has to move so many bytes, or why there is none."""
    to = torch.empty_like(copied)
    copy = call(to.copy_, copied)
    times = 1 if on_cpu else int(min(max(10 * 1024 / size, 10), 100))
    try:
        clock(copy, 1)
        clock(work, 1)
        rounds = []
        for _ in range(1 if on_cpu else ROUNDS):
            copied_at = 8 * copied.numel() / clock(copy, times) / 1e9
            worked_at = count / clock(work, times) / 1e9
            rounds.append((worked_at, copied_at, worked_at / copied_at))
    except Exception as error:  # a compiler that is missing costs its own lines only
        reason = str(error).strip().splitlines() or [type(error).__name__]
        print(f"| {what} | {size:g} | {reason[0][:60]} | | |", flush=True)
        return
    own, beside, ratio = (statistics.median(column) for column in zip(*rounds))
    print(f"| {what} | {size:g} | {own:.1f} | {beside:.1f} | {ratio:.2f} |", flush=True)


def clock(work, times):
    """Returns the seconds that work takes, enqueued so often."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - start) / times


if __name__ == "__main__":
    main()
