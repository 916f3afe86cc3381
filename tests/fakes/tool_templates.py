"""Chat templates that lay out tools, each in the way of one family."""

HERMES = (
    "{% if tools %}<|user|>{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|user|><tool_response>\n{{ message.content }}\n</tool_response><|end|>"
    "{% else %}{{ '<|assistant|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '\n' if message.content or not loop.first }}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>"
    "{% endfor %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

LLAMA = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'user' and tools %}{{ tools | tojson }}{% endif %}"
    "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
    "{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

MISTRAL = (
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{{ message.content }}[/INST]"
    "{% elif message.tool_calls %}<|pad|>[{% for call in message.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    '{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}{{ \', \' if not loop.last }}'
    "{% endfor %}]<|end|>{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
)

XML = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% if tools %}tools{% endif %}"
    "{% for call in message.tool_calls or [] %}<function={{ call.function.name }}>"
    "{% for name, value in call.function.arguments.items() %}<{{ name }}>{{ value }}</{{ name }}>{% endfor %}"
    "</function>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Arguments are no JSON."""
