"""A terminal of a test's own, in tmux: what is typed, and what is on its screen."""

import re
import shutil
import subprocess

from job_case import wait_until

TMUX = shutil.which("tmux")


class Terminal:
    """A shell in a window of `columns` x `rows`."""

    def __init__(self, folder, env, columns=80, rows=24):
        self.socket = folder / "tmux"
        self.env = {**env, "LC_ALL": "C.UTF-8", "HISTFILE": ""}
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "test", "-x", str(columns), "-y", str(rows), "exec env 'PS1=$ ' bash --norc --noprofile")
        self.wait_for("$")

    def tmux(self, *words):
        return subprocess.run([TMUX, "-u", "-S", self.socket, *words], env=self.env, text=True, capture_output=True, check=True,
                              timeout=60).stdout

    def close(self):
        subprocess.run([TMUX, "-S", self.socket, "kill-server"], capture_output=True, timeout=60)

    def lines(self, *words):
        """The whole screen."""
        return self.tmux("capture-pane", "-p", "-t", "test", *words).splitlines()

    def text(self):
        return "\n".join(self.lines())

    def press(self, *keys):
        self.tmux("send-keys", "-t", "test", *keys)

    def run(self, line):
        self.press("-l", line)
        self.press("Enter")

    def wait_for(self, *words, but=(), found=""):
        """The screen once it has all of these words and none of the others, and this pattern is found in it."""
        text = ""

        def is_there():
            nonlocal text
            text = self.text()
            return all(word in text for word in words) and not any(word in text for word in but) and re.search(found, text)
        try:
            wait_until(is_there, f"a screen with {words} {found} and without {but}")
        except AssertionError as error:
            raise AssertionError(f"{error}\nThe screen was last:\n{text}") from None
        return text

    def resize(self, columns, rows):
        self.tmux("resize-window", "-t", "test", "-x", str(columns), "-y", str(rows))

    def is_as_before(self):
        """Whether no program has it for itself: the other screen, the cursor, the keys."""
        flags = self.tmux("display-message", "-p", "-t", "test", "#{alternate_on} #{cursor_flag} #{keypad_flag}")
        return flags.split() == ["0", "1", "0"]
