"""Tables in bench/results/simulation.md that a command writes: what bench/published and bench/scale share."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "bench/results/simulation.md"


def table(columns, rows):
    """Returns a table as Markdown has it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def put(command, sections):
    """Puts sections, each of a title and a text, between the marks of the command that makes them."""
    begin, end = f"<!-- {command}: begin -->\n", f"<!-- {command}: end -->"
    text = "".join(f"\n### {title}\n\n{body}" for title, body in sections)
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}{text}\n{end}{rest.split(end)[1]}")
