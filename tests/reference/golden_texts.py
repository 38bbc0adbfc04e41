"""The texts that goldens of tokenizers are made of: prose of many scripts, code, emoji, every white space,
random code points. Uses `random` with the seed that the caller set."""
import random

PROSE = [
    "The quick brown fox jumps over the lazy dog, twice; then it rests until 17:45.",
    "Der Wind trägt leise Blätter über die Straße, während Jürgen Äpfel zählt.",
    "L'été dernier, nous avons mangé des crêpes à l'œuf près de la forêt.",
    "El niño soñó con un pingüino que vivía en una montaña. ¿Verdad? ¡Sí!",
    "Быстрая лиса прыгает через ленивую собаку; ёжик смотрит на неё.",
    "Η γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "הציפור הקטנה שרה על העץ בבוקר. שָׁלוֹם עולם!",
    "الطائر الصغير يغني فوق الشجرة كل صباح. مَرْحَبًا ١٢٣٤٥",
    "छोटी चिड़िया हर सुबह पेड़ पर गाती है। क्षत्रिय १२३",
    "ছোট পাখি প্রতিদিন সকালে গান গায়। ৪৫৬",
    "சிறிய பறவை மரத்தில் பாடுகிறது. ௧௨௩",
    "นกตัวเล็กร้องเพลงบนต้นไม้ทุกเช้า ๑๒๓๔",
    "小鸟每天早上在树上唱歌。他买了三本书,花了42元。",
    "小さな鳥が毎朝、木の上で歌っています。カタカナとひらがな。",
    "작은 새가 매일 아침 나무 위에서 노래합니다. 한국어 문장.",
    "პატარა ჩიტი ყოველ დილით მღერის.", "Փոքրիկ թռչունը երգում է ամեն առավոտ։",
    "ትንሿ ወፍ በየማለዳው ትዘምራለች። ፩፪፫", "ປາ ນົກນ້ອຍ ຮ້ອງເພງ", "ငှက်ကလေး သီချင်းဆိုသည်။ ၁၂၃",
    "Chim nhỏ hót trên cành mỗi sáng, rất hay ở Việt Nam.", "Küçük kuş her sabah öter, İstanbul ığdır.",
]
CODE = [
    "def fib(n: int) -> int:\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "class Node:\n    __slots__ = ('left', 'right')\n\n    def __init__(self):\n        self.left = None\n",
    "for i in range(10):\n\tprint(f\"{i:>3} {i ** 2!r}\")\n\n\n",
    "#include <cstdio>\r\nint main() { std::printf(\"%d\\n\", 0x1F + 0b101 + 1'000); return 0; }\r\n",
    "SELECT a.id, COUNT(*) FROM a LEFT JOIN b ON a.id = b.a_id WHERE b.x <> 'it''s' GROUP BY 1;",
    "{\"key\": [1, 2.5e-10, null, true], \"nested\": {\"a\\\"b\": \"\\u00e9\"}}",
    "x = re.sub(r'(?i:\\'s|\\'t)|[^\\r\\n\\p{L}]?\\p{L}+', '', s)  # comment\n",
    "if (a&&b||!c){d^=~e<<3;}else{f?.g??=h;}//end\n/* block\n * comment */\n",
    "    @property\n    def value(self):\n        \"\"\"Doc.\"\"\"\n        return self._value\n",
    "$ ls -la /usr/lib | grep '\\.so' > out.txt 2>&1; echo \"${HOME}/x\"\n",
    "<div class=\"a b\" id='c'>&amp;nbsp;</div><!-- x -->\n",
    "lambda *a, **k: (yield from [*a, *k.items()])", "a = b'\\x00\\xff' + rb'\\d'\n",
]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "❤️", "1️⃣", "🧑🏿‍🚀", "☃", "🫠", "🪿", "🦙.cpp"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000",
          "\u0085", "\u2028", "\u2029", "\u000b", "\u000c", "\u1680", "\u202f", "\u205f", "\u200b", "\ufeff",
          "\u180e", "\u001c", "\u001f"]
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>"]


def code_point(top=0x10FFFF):
    while True:
        c = random.randrange(top + 1)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def contraction():
    text = random.choice(CONTRACTIONS)
    text = "".join(random.choice([c, c.upper()]) for c in text)
    return text.replace("s", random.choice(["s", "\u017f"])).replace("S", random.choice(["S", "\u017f"]))


def atom():
    kind = random.randrange(14)
    if kind == 0: return random.choice(PROSE)[:random.randrange(1, 30)]
    if kind == 1: return random.choice(CODE)[:random.randrange(1, 40)]
    if kind == 2: return random.choice(EMOJI)
    if kind == 3: return contraction()
    if kind == 4: return "".join(random.choices(SPACES, k=random.randrange(1, 5)))
    if kind == 5: return "".join(random.choices("0123456789", k=random.randrange(1, 9)))
    if kind == 6: return "".join(code_point() for _ in range(random.randrange(1, 4)))
    if kind == 7: return "".join(code_point(0xFFFF) for _ in range(random.randrange(1, 4)))
    if kind == 8: return "".join(code_point(0x7FF) for _ in range(random.randrange(1, 6)))
    if kind == 9: return random.choice(SPACES[:4]) * random.randrange(1, 20)
    if kind == 10: return "".join(random.choices("!?.,;:-_=+*/\\|<>()[]{}'\"`~@#$%^&", k=random.randrange(1, 6)))
    if kind == 11: return "".join(chr(random.randrange(32)) for _ in range(random.randrange(1, 3)))
    if kind == 12: return random.choice(PROSE).split()[-1]
    return random.choice("\u0300\u0301\u0308\u0334\u20dd\u094d\u05b8\u0e31\u200d\ufe0f") + random.choice("aéЖ中")


def fixed_texts():
    texts = ["", "a", " ", "\n", "'", "''", "'s", " 's", "''s", "' s", "'S", "'\u017f", "x'\u017f", "'\u017fx",
             "'\ufb06", "'\ufb05", "'\u00df", "'ST", "'LL", "'Ll", "'lL", "'l", "'r", "'R'E", "'RE", "'vE", "'\u212a",
             "don't we'll THEY'RE I'M she'D you'Ve it\u2019s", "a'b'c'd's't", "123'456", "'1", "'\n's",
             "Hello world", " Hello world", "Hello, world!", "   Hello", "    Hello\n    Hello", "\n\n\n", "\t\n",
             "3333", "' era", "ied 4 \u00bd months", "F\u00fchrer", "w048 7tuijk dsdfhu", " this is \U0001f999.cpp",
             "!!!!!!", " !\n\n", "!\r\n\r\nx", " \r\n x", "  \n  \n  x", "a  \nb", "a \n \n", "x   ", "x \t y", "\t\tx",
             "\u3000x", "\u3000\u3000x", "\u00a0x", "\u00a0\u00a01", "x\u0085y", " \u0085 y", "\r\u2028\ny", " \u2028",
             "0", "12", "123", "1234", "1234567", "\u0661\u0662\u0663\u0664", "\u00b2\u00b3\u00b9\u00bc\u00bd",
             "\u2160\u2161\u2162\u2163", "\u3007\u3021\u3022\u3023", "1a2b3c", "a1\u0301", "e\u0301e\u0301", "\u0301a",
             "\x00", "a\x00b", "\x7f", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "<|", "<|begin_of_text|", "|>",
             "\u2e2f", "\ua69c", "\U0001e030", "\U00016d40", "\u1c89", "\ua7cb", "\U000105c0", "\U0001ccf0"]
    texts += PROSE + CODE + EMOJI
    texts += [word * n for word in ("a", " ", "\n", "0", "!", "é", "中", "ab", "'s", " \n") for n in (2, 3, 4, 7, 31, 100)]
    texts += [f"{a}{b}{c}" for a in SPECIAL for b in ("", " ", "x", "\n") for c in SPECIAL + ["", " tail", "'s"]]
    texts += [f"see {s} and{s}then {s}" for s in SPECIAL]
    texts += [a + b + c for a in ("x", "1", "!", "") for b in SPACES for c in ("y", "2", "?", "")]
    return texts
