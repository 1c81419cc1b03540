"""Words that say what a request is made of, in English and Chinese, as data.

English words are looked up among the words of a text and phrases are searched as they are; Chinese has no spaces, so all its
cues are one pattern, of which the longest at a place counts. Forms of a word stand here one by one: cutting endings off would
cost more than all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

STEPS: Final = 0
CONDITIONS: Final = 1
CLAUSES: Final = 2
CONSTRAINTS: Final = 3
CODE: Final = 4
MATHS: Final = 5
TABLES: Final = 6
REASONING: Final = 7
KINDS: Final = 8

_ENGLISH: Mapping[int, str] = {
    STEPS: "first firstly second secondly third thirdly then next finally lastly afterwards step steps stage stages phase phases",
    CONDITIONS: "if unless otherwise else when whenever provided assuming suppose depending case cases either whether until",
    CLAUSES: "which that because although though while whereas whose where so since who after before without including",
    CONSTRAINTS: (
        "must exactly only under within without limit limited maximum minimum avoid never always should ensure "
        "required requires strictly json xml yaml csv markdown format each every keep not exclude excluding including "
        "tone"
    ),
    CODE: (
        "code function functions class classes python java javascript typescript rust golang cpp sql regex script bash "
        "linux api apis algorithm bug debug refactor compile compiler parser kernel cuda thread threads lock deadlock "
        "async cache database schema query index unit interface interfaces docker kubernetes git html css react "
        "postgresql mysql redis implement def return import select static void struct null exception loop array recursion "
        "recursive module grammar deploy latency"
    ),
    MATHS: (
        "prove proof theorem lemma integral derivative derive equation equations matrix matrices probability posterior "
        "prior variance solve calculate compute prime polynomial eigenvalue converge converges convergence "
        "linear simplex equilibrium distribution graph vertex limit logarithm factorial vector reduction "
        "complete percent sensitivity estimate bound demand"
    ),
    TABLES: "table tables column columns row rows spreadsheet csv excel matrix chart",
    REASONING: (
        "prove proof derive justify analyse analyze analysis design evaluate assess compare compares comparison critique "
        "critical argue argument arguments optimise optimize optimal strategy trade tradeoff tradeoffs offs propose "
        "recommend plan explain why generalise generalize counterexample hypothesis hypotheses hypothesise formulate "
        "interpret discuss diagnose differential determine identify verify reconstruct objection objections implications "
        "implement estimate construct consider conditions review advantages disadvantages causes describe how show"
    ),
}
_PHRASES: Mapping[int, str] = {
    STEPS: "step by step",
    CONDITIONS: "in case| so that | such that",
    CONSTRAINTS: "no more than|no fewer than|less than|do not |don't |at least|at most|words",
}
_CHINESE: Mapping[int, str] = {
    STEPS: "首先 其次 再次 然后 接着 随后 之后 最后 最终 再 第一步 第二步 第三步 第一 第二 第三 步骤 一步一步 逐步 阶段",
    CONDITIONS: "如果 若 要是 假如 假设 假定 除非 否则 无论 不管 一旦 当 万一 情况 直到 是否 只要 前提",
    CLAUSES: "因为 所以 虽然 但是 但 尽管 而且 并且 由于 以及 其中 同时 既 却 以便 从而 对于 关于 为了",
    CONSTRAINTS: (
        "必须 不得 不能 不要 不许 不可 不超过 少于 多于 至少 至多 最多 最少 只用 只能 仅 恰好 正好 严格 务必 确保 避免 应 "
        "每 各 保持 保留 以内 之内 格式 JSON XML 不含 不出现 不需要 包括 语气 始终 限制"
    ),
    CODE: (
        "代码 函数 类 脚本 接口 算法 数据库 编译 解析器 线程 锁 死锁 缓存 查询 正则 调试 重构 部署 内核 分布式 实现 "
        "单元测试 抽象语法树 模块 文法 递归 数组 循环 异常 延迟 索引 服务器"
    ),
    MATHS: (
        "证明 定理 引理 积分 导数 推导 方程 矩阵 概率 后验 先验 方差 求解 计算 素数 多项式 特征值 收敛 线性 "
        "单纯形 均衡 分布 图 顶点 极限 对数 向量 归约 完全 估计 灵敏度 需求"
    ),
    TABLES: "表格 列表 数据表 电子表 图表 一张表",
    REASONING: (
        "证明 推导 论证 论据 分析 设计 评估 评价 比较 对比 批判 优化 最优 策略 战略 取舍 权衡 折中 提出 推荐 规划 安排 "
        "解释 说明 为什么 推广 反例 假设 建立 构造 构建 诊断 鉴别 确定 找出 识别 验证 重构 反驳 影响 理由 实现 估计 讨论 "
        "考虑 复述 检查 审查 优点 缺点 原因 怎么 如何 区分 依据"
    ),
}

WORDS: Mapping[str, tuple[int, ...]]
"""Lower-case word -> what it is a cue of; one word may be several."""
PHRASES: tuple[tuple[str, int], ...] = tuple((phrase, kind) for kind, listed in _PHRASES.items() for phrase in listed.split("|"))
"""Lower-case English phrases."""
CHINESE: Mapping[str, tuple[int, ...]]
"""As `WORDS`."""


def _by_word(table: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for kind, listed in table.items():
        for word in listed.split():
            found[word.lower()] = (*found.get(word.lower(), ()), kind)
    return found


def _pattern(words: Mapping[str, object]) -> re.Pattern[str]:
    """One pattern for all words and their first characters, the longest first.

    That a first character alone matches, too, and counts as nothing, spares the engine the other hundred branches where a word
    does not go on: 18 us instead of 27 for 450 characters.
    """
    heads: dict[str, set[str]] = {}
    for word in words:
        heads.setdefault(word[0], set()).add(word[1:])
    order = sorted(heads, key=lambda head: (-len(heads[head]), head))
    rests = {head: sorted(rest - {""}, key=lambda one: (-len(one), one)) for head, rest in heads.items()}
    return re.compile("|".join(f"{head}(?:{'|'.join([*rests[head], ''])})" if rests[head] else head for head in order))


WORDS = _by_word(_ENGLISH)
CHINESE = {word: kinds for word, kinds in _by_word(_CHINESE).items() if not word.isascii()}
IN_CHINESE = _pattern(CHINESE)
CHINESE = {**{word[0]: () for word in CHINESE}, **CHINESE}
