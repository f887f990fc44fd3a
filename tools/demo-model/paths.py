"""Where the files of the demo checkpoint lie in the repository."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO_FOLDER = REPOSITORY / "demo"
TOKENIZER = DEMO_FOLDER / "tokenizer.json"
CHAT_TEMPLATE = DEMO_FOLDER / "chat_template.jinja"
