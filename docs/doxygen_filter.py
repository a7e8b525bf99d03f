#!/usr/bin/env python3
"""Doxygen's input filter: makes doc comments out of the plain // comments of our headers. Line numbers stay.

- A // block directly above a declaration documents it and every further declaration up to the next blank line.
- A // after a declaration adds to that: on its lines, and below in the same column.
- The // block at the head of a file documents the file. A file without one is reported.
- Lines indented by three spaces or more after the // are shown as they stand; `x` is code; the rest is prose.
- Some names say nothing new, and the comment of the type directly around them holds for them: constructors, the
  destructor, assignment, comparison, the call of a layer, `project`, `fields` and enumerators. The type itself needs
  its comment, or Doxygen reports it.
- A file whose head comment says "Internal" is left out, and so are fmt's formatters of our types.
"""
import re
import sys

SAID_BY_THE_TYPE = "&zwj;"  # counts as a comment and shows nothing


def split_comment(line):
    """The line's code, without the contents of quotes, and the column of its // comment (None: it has none)."""
    code, quote, i = "", None, 0
    while i < len(line):
        c = line[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = None
        elif c == '"' or (c == "'" and not (i and line[i - 1].isdigit())):
            quote = c
        elif line.startswith("//", i):
            return code, i
        else:
            code += c
        i += 1
    return code, None


def prose(text):
    """Escapes what Doxygen would take for a command or a tag."""
    text = re.sub(r"([\\@<>&#%$])", r"\\\1", text).replace("*/", "* /")
    text = re.sub(r"\b(al|vs)\.( |$)", r"\1.&nbsp;", text)  # a full stop ends the brief description
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def text_of(line):
    return re.sub(r"^ *// ?", "", line)


def one_line(block):
    """A block as one line, for the second and further declarations that it documents."""
    parts = []
    for text in map(text_of, block):
        if text.startswith("  "):
            parts.append("<br><code>" + prose(text.strip()) + "</code>")
        else:
            parts.append(prose(text) or "<br>")
    return " ".join(parts)


def doc_block(block):
    """A block as lines of doc comment, as many as it has."""
    lines, shown = [], False
    for text in map(text_of, block):
        if text.startswith("  "):
            if not shown:
                lines.append("///") if not lines else None
                lines[-1] += " @code{.unparsed}"
            lines.append("/// " + text)
        else:
            if shown:
                lines[-1] += " @endcode"
            lines.append("/// " + prose(text))
        shown = text.startswith("  ")
    if shown:
        lines[-1] += " @endcode"
    return lines


def split_declarators(declaration):
    """The declarators of "double x = 0, y;" as declarations of their own; as it is where it is not of that form."""
    match = re.fullmatch(r"((?:inline |constexpr |static |const )*(?:[\w:]+(?:<.*?>)?(?=[ ])[ ]*[*&]?))([\w].*);", declaration)
    if not match or re.match(r"(template|using|return|friend|enum|struct|class)\b", declaration):
        return [declaration]
    kind, names, depth, parts = match[1], match[2], 0, [""]
    if re.match(r"\w+ *\(", names) or "operator" in names:
        return [declaration]
    for c in names:
        depth += (c in "({[<") - (c in ")}]>")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [f"{kind}{part.strip()};" for part in parts]


class Level:
    """A namespace, class or enum, or what is skipped: the body of a function, an initialiser."""

    def __init__(self, kind, name=""):
        self.kind, self.name = kind, name
        self.doc = ""  # the comment that holds for further declarations
        self.above = False  # ... and stands directly above the next one, where it is already printed


class Filter:
    def __init__(self, lines):
        self.lines, self.out = lines, []
        self.levels = [Level("namespace")]

    @property
    def top(self):
        return self.levels[-1]

    def run(self):
        n = self.head()
        while n < len(self.lines):
            line = self.lines[n]
            if line.lstrip().startswith("#"):
                if line.startswith("#define") and not self.top.above and self.top.doc:
                    line += f" /**< {self.top.doc} */"
                self.top.above = False
                while line.endswith("\\"):
                    self.out.append(line)
                    n += 1
                    line = self.lines[n]
                self.out.append(line)
                n += 1
            elif not line.strip():
                self.top.doc = ""
                self.out.append(line)
                n += 1
            elif self.is_comment(n):
                n = self.comment(n)
            elif line == "template <>" and self.lines[n + 1].startswith("struct fmt::"):
                while line != "};":
                    self.out.append("")
                    n += 1
                    line = self.lines[n]
                n += 1
                self.out.append("")
            elif re.match(r" *(public|private|protected):", line):
                self.out.append(line)
                n += 1
            else:
                n = self.declarations(n)
        return self.out

    def is_comment(self, n):
        return n < len(self.lines) and re.match(r" *//", self.lines[n])

    def block_from(self, n):
        end = n
        while self.is_comment(end):
            end += 1
        return self.lines[n:end], end

    def head(self):
        # In the place of #pragma once, which says nothing to Doxygen.
        block, n = self.block_from(0)
        self.out += doc_block(block)
        if re.search(r"\bInternal\b", " ".join(block)):
            return len(self.lines)
        self.out.append("/// @file" if block else "/// @file this_file_has_no_comment_at_its_head")
        return n + 1

    def comment(self, n):
        block, end = self.block_from(n)
        if end == len(self.lines) or not self.lines[end].strip():
            self.out += block
        else:
            self.out += doc_block(block)
            self.top.doc, self.top.above = one_line(block), True
        return end

    def declarations(self, first):
        """Reads whole declarations from line `first` on, up to the end of a line; prints them; the line after."""
        level, statement, paren, n = self.top, "", 0, first
        notes, whole = [], []
        while True:
            code, at = split_comment(self.lines[n])
            depth = len(self.levels)
            for c in code:
                if self.top.kind == "skipped":
                    if c == "{":
                        self.levels.append(Level("skipped"))
                    elif c == "}":
                        self.levels.pop()
                        if self.top.kind != "skipped":
                            statement += "}"
                            if not re.search(r"= *\{\}$", statement):
                                whole.append(statement.strip())
                                statement = ""
                    continue
                if c == "}" and not statement.strip():
                    self.levels.pop()
                    continue
                paren += (c in "([") - (c in ")]")
                statement += c
                if c == "{":
                    kind, name = self.kind_of(statement, paren)
                    if kind != "skipped":
                        whole.append(statement.strip())
                        statement = ""
                    self.levels.append(Level(kind, name))
                elif c == "}" and self.top.kind == "enum":
                    whole.append(statement[:-1].strip())
                    statement = ""
                    self.levels.pop()
                elif (c == ";" or (c == "," and self.top.kind == "enum")) and paren == 0:
                    whole.append(statement.strip())
                    statement = ""
            if at is not None and not (self.top.kind == "skipped" and depth == len(self.levels) and notes):
                notes.append((n, at))
            statement += " "
            n += 1
            if not statement.strip() or n == len(self.lines) or self.top is not level and self.top.kind != "skipped":
                if self.top.kind != "skipped":
                    break
        text = [text_of(self.lines[k][at:]) for k, at in notes]
        last = n
        while notes and self.is_comment(n) and self.lines[n].index("//") == notes[-1][1] > len(self.lines[first]) - len(self.lines[first].lstrip()):
            text.append(text_of(self.lines[n]))
            n += 1
        self.show(level, [w for w in whole if w.strip(" ;")], first, last, prose(" ".join(text)))
        self.out += self.lines[last:n]
        return n

    def kind_of(self, statement, paren):
        bare = re.sub(r"^ *template *<[^>]*> *", "", statement)
        match = re.search(r"\b(namespace|class|struct|union|enum)\b(?: class)?\s*((?:\[\[.*?\]\]\s*)?[\w:]*)", bare)
        if paren or not match or ")" in bare or "=" in bare.split("{")[0]:
            return "skipped", ""
        kind = {"struct": "class", "union": "class"}.get(match[1], match[1])
        return kind, match[2]

    def show(self, level, statements, first, last, note):
        line = self.lines[first]
        indent = line[: len(line) - len(line.lstrip())]
        rest = line[len(indent) :]
        statement = re.sub(r"^template *<.*?> *(?=\w)", "", statements[0]) if statements else ""
        text = " ".join(filter(None, ["" if level.above else level.doc, note]))
        if not statement or re.match(r"(friend|static_assert|using namespace|namespace)\b|(class|struct) \w+;", statement):
            text, level.above = "", False
        else:
            if level.kind == "class" and not text and not level.doc:
                own = rf"(requires *\(.*?\)+ *)?((explicit|constexpr|inline|virtual) )*~?{level.name} *\(|.*\b(operator(=|==|\(\))|project|fields) *\("
                if re.match(own, statement):
                    text = SAID_BY_THE_TYPE
            elif level.kind == "enum":
                text = text or level.doc or SAID_BY_THE_TYPE
            above, level.above = level.above, False
        comment = f"/** {text} */ " if text else ""
        if re.match(r"enum\b.*\{.*\}", line.strip()):
            body = re.search(r"\{.*\}", rest)
            empty = f"/** {SAID_BY_THE_TYPE} */"
            rest = rest[: body.start()] + re.sub(r"([{,])", rf"\1 {empty}", body[0]) + rest[body.end() :]
        elif level.kind == "enum":
            rest = re.sub(r",\s*(?=\w)", f", {comment}", split_comment(rest)[0])
        elif last == first + 1 and level.kind != "skipped" and statement.endswith(";"):
            at = split_comment(rest)[1]
            parts = split_declarators(rest[:at].strip())
            if len(parts) > 1:
                every = " ".join(filter(None, [level.doc, note]))
                rest = f" /** {every} */ ".join(parts) if every else " ".join(parts)
        self.out.append(indent + comment + rest)
        self.out += self.lines[first + 1 : last]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(Filter(file.read().splitlines()).run()))
