"""A chat with Hepti's service, by OpenAI's Python package (pip install openai).

hepti serve --np 2 --model qwen3.h5        # elsewhere
python examples/chat.py
"""

import argparse
import os
import sys

try:
    import openai
except ImportError:
    sys.exit("chat.py: needs OpenAI's package: pip install openai")


def main() -> None:
    """Read lines until the end of input; print answers as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="a language model of the service (default: its first)")
    parser.add_argument("--tokens", type=int, default=512, help="of an answer at most (default: %(default)s)")
    options = parser.parse_args()

    try:
        chat(options)
    except openai.APIConnectionError:
        sys.exit(f"chat.py: no service at {options.url}: start one with hepti serve --model M.h5, or give its --url")
    except openai.OpenAIError as error:  # the service refuses
        sys.exit(f"chat.py: {error}")


def chat(options: argparse.Namespace) -> None:
    """Send every line with all that was said before it."""
    client = openai.OpenAI(base_url=options.url, api_key=os.environ.get("HEPTI_API_KEY", "none"))
    model = options.model or first_language_model(client)
    messages: list[dict[str, str]] = []
    print(f"{model}; an empty line ends the chat", file=sys.stderr)
    for line in sys.stdin:
        if not line.strip():
            break
        messages.append({"role": "user", "content": line.strip()})
        said = ""
        stream = client.chat.completions.create(model=model, messages=messages, max_tokens=options.tokens, stream=True)
        for event in stream:
            piece = event.choices[0].delta.content or "" if event.choices else ""
            print(piece, end="", flush=True)
            said += piece
        print()
        messages.append({"role": "assistant", "content": said})


def first_language_model(client: openai.OpenAI) -> str:
    """Return the name of one, or end."""
    names = [model.id for model in client.models.list() if model.model_extra.get("kind") == "decoder"]
    if not names:
        sys.exit("chat.py: the service has no language model: start it with one, hepti serve --model M.h5")
    return names[0]


if __name__ == "__main__":
    main()
