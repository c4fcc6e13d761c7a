"""Conversations in GLM-5.2's chat layout, in segments with their weights in the loss."""

import json

TOOLS_HEAD = "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"

TOOLS_TAIL = "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"


def tool_calls_text(tcs):
    """Calls as the model writes them."""
    s = ""
    for tc in tcs:
        tc = tc.get("function", tc)
        s += "<tool_call>" + tc["name"]
        for k, v in tc["arguments"].items():
            s += f"<arg_key>{k}</arg_key><arg_value>{(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False))}</arg_value>"
        s += "</tool_call>"
    return s


def render(d, gen_prompt=False):
    """-> list of (text, weight); same string as the GLM-5.2 chat template."""
    ms, think = (d["messages"], d.get("think", False))
    out = "[gMASK]<sop>"
    if think:
        out += "<|system|>Reasoning Effort: " + ("High" if d.get("effort") == "high" else "Max")
    if d.get("tools"):
        out += TOOLS_HEAD
        for t in d["tools"]:
            t = t.get("function", t)
            out += (
                "{"
                + ", ".join((f'"{k}": ' + json.dumps(v, ensure_ascii=False) for k, v in t.items() if k not in ("defer_loading", "strict")))
                + "}\n"
            )
        out += TOOLS_TAIL
    last = max([i for i, m in enumerate(ms) if m["role"] == "user"], default=-1)
    segs = []
    wp = d.get("wp", 0.1)
    done = None
    for i, m in enumerate(ms):
        c = m.get("content") or ""
        if m["role"] == "user":
            out += ("" if done == "<|user|>" else "<|user|>") + c
            done = None
        elif m["role"] == "system":
            out += "<|system|>" + c
        elif m["role"] == "tool":
            if (i == 0 or ms[i - 1]["role"] != "tool") and done != "<|observation|>":
                out += "<|observation|>"
            out += "<tool_response>" + c + "</tool_response>"
            done = None
        else:
            rc = m.get("reasoning_content") if i > last else None
            out += "<|assistant|>"
            if rc is not None:
                out += "<think>"
                body = rc + "</think>"
            else:
                out += "<think></think>"
                body = ""
            body += c.strip() + tool_calls_text(m.get("tool_calls") or [])
            nxt = ms[i + 1]["role"] if i + 1 < len(ms) else "user"
            done = "<|observation|>" if nxt == "tool" or (i + 1 == len(ms) and m.get("tool_calls")) else "<|user|>"
            segs.append((out, wp))
            out = ""
            segs.append((body + done, 1.0 if not think or i > last else wp))
    if gen_prompt:
        out += "<|assistant|>" + ("<think>" if think else "<think></think>")
    if out:
        segs.append((out, wp))
    return segs


def segments(d):
    if "raw" in d:
        return [(d["raw"], 0.5), ("<|endoftext|>", 0.5)]
    return render(d)


def assistant(content, reasoning=None, tool_calls=None):
    m = dict(role="assistant", content=content)
    if reasoning is not None:
        m["reasoning_content"] = reasoning
    if tool_calls:
        m["tool_calls"] = tool_calls
    return m


def user(content):
    return dict(role="user", content=content)


def system(content):
    return dict(role="system", content=content)


SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are Ingot Demo, a small demonstration model.",
    "Answer briefly.",
    "You are a careful math tutor.",
    "Be concise and correct.",
    "You are a friendly assistant.",
]


def maybe_system(rng, p=0.15):
    """Now and then a system message."""
    return [system(rng.choice(SYSTEM_MESSAGES))] if rng.random() < p else []
