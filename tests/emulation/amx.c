/* AMX on a CPU without it: a handler of SIGILL decodes the instruction that trapped, carries it out on tiles that every
 * thread has of its own, and steps over it. What the architecture refuses (a tile that is not configured, operands whose
 * shapes do not fit) and every other illegal instruction ends the process as it would without the handler.
 *
 * Where the CPU has tiles and lacks a multiply-add, that one traps alone. Its tiles are then the CPU's own: the kernel
 * has saved them in the signal's frame, in XSAVE's standard form, and goes on with what it finds there.
 *
 * Encodings and checks: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapters "LDTILECFG",
 * "TILELOADD", "TDPBUSD", "TDPBF16PS" and their neighbours; "TDPFP16PS": Architecture Instruction Set Extensions
 * Programming Reference. The frame: volume 1, "XSAVE Area", and Linux's asm/sigcontext.h. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };
enum { PREFIX_NONE, PREFIX_66, PREFIX_F3, PREFIX_F2 };
enum { SOFTWARE_BYTES = 464, XSAVE_HEADER = 512, TILE_CONFIGURATION = 17, TILE_DATA = 18 };

typedef union {
    uint8_t u8[ROWS][ROW_BYTES];
    int32_t i32[ROWS][ROW_BYTES / 4];
    float f32[ROWS][ROW_BYTES / 4];
    uint16_t u16[ROWS][ROW_BYTES / 2];
} Tile;

static __thread struct {
    int configured, rows[TILES], row_bytes[TILES];
    Tile tiles[TILES];
} state;

static _Atomic long executed; /* Multiply-add instructions of all threads. */

long amx_executed(void) { return executed; }

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

typedef struct {
    int opcode, prefix, vvvv, mod, reg, rm, has_sib;
    uint8_t *address;
    int64_t stride;
    int length;
} Instruction;

/* The instruction at `at`, if it is a VEX-coded one of the map 0F38 with a 128-bit length and W = 0. */
static int decode(const uint8_t *at, const greg_t *gregs, Instruction *out) {
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84)) return 0;
    int r = !(at[1] & 0x80), x = !(at[1] & 0x40), b = !(at[1] & 0x20), length = 5;
    out->vvvv = ~(at[2] >> 3) & 15;
    out->prefix = at[2] & 3;
    out->opcode = at[3];
    out->mod = at[4] >> 6;
    out->reg = (at[4] >> 3 & 7) | r << 3;
    out->rm = (at[4] & 7) | b << 3;
    out->has_sib = out->mod != 3 && (at[4] & 7) == 4;
    out->address = NULL;
    out->stride = 0;
    if (out->mod != 3) {
        int base = out->rm, has_base = 1, relative = 0, displacement = out->mod == 1 ? 1 : out->mod == 2 ? 4 : 0;
        int64_t offset = 0;
        if (out->has_sib) {
            int index = (at[5] >> 3 & 7) | x << 3;
            base = (at[5] & 7) | b << 3;
            if (index != 4) out->stride = gregs[REGISTERS[index]] * (1 << (at[5] >> 6));
            length = 6;
        }
        if (out->mod == 0 && (base & 7) == 5) {
            displacement = 4;
            has_base = 0;
            relative = !out->has_sib;
        }
        if (displacement == 1) offset = (int8_t)at[length];
        if (displacement == 4) {
            int32_t value;
            memcpy(&value, at + length, 4);
            offset = value;
        }
        length += displacement;
        if (has_base) offset += gregs[REGISTERS[base]];
        if (relative) offset += (int64_t)(at + length);
        out->address = (uint8_t *)offset;
    }
    out->length = length;
    return 1;
}

static int configure(const uint8_t *memory) {
    memset(&state, 0, sizeof state);
    if (memory[0] == 0) return 1; /* Palette 0: as after TILERELEASE. */
    if (memory[0] != 1 || memory[1] >= ROWS) return 0;
    for (int i = 2; i < 64; i++)
        if ((i < 16 || (i >= 32 && i < 48) || i >= 56) && memory[i]) return 0;
    for (int t = 0; t < TILES; t++) {
        state.row_bytes[t] = memory[16 + 2 * t] | memory[17 + 2 * t] << 8;
        state.rows[t] = memory[48 + t];
        if (state.rows[t] > ROWS || state.row_bytes[t] > ROW_BYTES || !state.rows[t] != !state.row_bytes[t]) return 0;
    }
    return state.configured = 1;
}

static int is_usable(int tile) { return tile < TILES && state.configured && state.rows[tile]; }

static void load(int tile, const Instruction *in) {
    memset(&state.tiles[tile], 0, sizeof(Tile));
    for (int m = 0; m < state.rows[tile]; m++)
        memcpy(state.tiles[tile].u8[m], in->address + m * in->stride, state.row_bytes[tile]);
}

static void store(int tile, const Instruction *in) {
    for (int m = 0; m < state.rows[tile]; m++)
        memcpy(in->address + m * in->stride, state.tiles[tile].u8[m], state.row_bytes[tile]);
}

static void dot_bytes(Tile *c, const Tile *a, const Tile *b, int m, int n, int k, int a_signed, int b_signed) {
    for (int i = 0; i < 4; i++) {
        uint8_t x = a->u8[m][4 * k + i], y = b->u8[k][4 * n + i];
        c->i32[m][n] += (a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)y : y);
    }
}

static float from_bf16(uint16_t bits) { /* Denormals count as zero. */
    uint32_t wide = (bits & 0x7F80) ? (uint32_t)bits << 16 : (uint32_t)(bits & 0x8000) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static float from_fp16(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return value;
}

static float widened(uint16_t bits, int prefix) { return prefix == PREFIX_F2 ? from_fp16(bits) : from_bf16(bits); }

static int multiply(const Instruction *in) {
    int c = in->reg, a = in->rm, b = in->vvvv;
    if (!is_usable(c) || !is_usable(a) || !is_usable(b) || c == a || c == b || a == b) return 0;
    if (state.row_bytes[c] % 4 || state.row_bytes[a] % 4 || state.row_bytes[b] % 4) return 0;
    if (state.rows[c] != state.rows[a] || state.row_bytes[c] != state.row_bytes[b]
        || state.row_bytes[a] / 4 != state.rows[b]) return 0;
    Tile *to = &state.tiles[c], *left = &state.tiles[a], *right = &state.tiles[b];
    int a_signed = in->prefix == PREFIX_F2 || in->prefix == PREFIX_F3;
    int b_signed = in->prefix == PREFIX_F2 || in->prefix == PREFIX_66;
    int columns = state.row_bytes[c] / 4, steps = state.rows[b];
    for (int m = 0; m < state.rows[c]; m++) {
        float even[ROWS] = {0}, odd[ROWS] = {0};
        for (int k = 0; k < steps; k++)
            for (int n = 0; n < columns; n++)
                if (in->opcode == 0x5E) {
                    dot_bytes(to, left, right, m, n, k, a_signed, b_signed);
                } else {
                    const uint16_t *x = &left->u16[m][2 * k], *y = &right->u16[k][2 * n];
                    even[n] = fmaf(widened(x[0], in->prefix), widened(y[0], in->prefix), even[n]);
                    odd[n] = fmaf(widened(x[1], in->prefix), widened(y[1], in->prefix), odd[n]);
                }
        if (in->opcode == 0x5C)
            for (int n = 0; n < columns; n++) to->f32[m][n] += even[n] + odd[n];
    }
    executed++;
    return 1;
}

/* Carries one instruction out; 0 where it is none of AMX or has to fault. */
static int execute(const Instruction *in) {
    if (in->opcode == 0x49 && in->mod != 3 && in->prefix == PREFIX_NONE && in->reg == 0) return configure(in->address);
    if (in->opcode == 0x49 && in->mod == 3 && in->prefix == PREFIX_NONE && in->reg == 0 && in->rm == 0) {
        memset(&state, 0, sizeof state);
        return 1;
    }
    if (in->opcode == 0x49 && in->mod == 3 && in->prefix == PREFIX_F2 && is_usable(in->reg)) {
        memset(&state.tiles[in->reg], 0, sizeof(Tile));
        return 1;
    }
    if (in->opcode == 0x4B && in->has_sib && is_usable(in->reg)) {
        if (in->prefix == PREFIX_F3) store(in->reg, in);
        else if (in->prefix != PREFIX_NONE) load(in->reg, in);
        return in->prefix != PREFIX_NONE;
    }
    if (in->opcode == 0x5E && in->mod == 3) return multiply(in);
    return in->opcode == 0x5C && in->mod == 3 && (in->prefix == PREFIX_F3 || in->prefix == PREFIX_F2) && multiply(in);
}

static unsigned configuration_at, data_at; /* Offsets in an XSAVE area. */

/* Where the frame has the CPU's tiles; NULL where it has none. They become the state. */
static uint8_t *borrow(const ucontext_t *context) {
    uint8_t *area = (uint8_t *)context->uc_mcontext.fpregs;
    struct _fpx_sw_bytes software;
    uint64_t in_use;
    memcpy(&software, area + SOFTWARE_BYTES, sizeof software);
    if (software.magic1 != FP_XSTATE_MAGIC1 || !(software.xstate_bv >> TILE_DATA & 1)) return NULL;
    memcpy(&in_use, area + XSAVE_HEADER, sizeof in_use);
    if (!(in_use >> TILE_CONFIGURATION & 1) || !configure(area + configuration_at)) return NULL;
    if (in_use >> TILE_DATA & 1) memcpy(state.tiles, area + data_at, sizeof state.tiles);
    return area;
}

static void give_back(uint8_t *area) {
    uint64_t in_use;
    memcpy(&in_use, area + XSAVE_HEADER, sizeof in_use);
    in_use |= 1ull << TILE_DATA;
    memcpy(area + XSAVE_HEADER, &in_use, sizeof in_use);
    memcpy(area + data_at, state.tiles, sizeof state.tiles);
}

static void on_illegal(int number, siginfo_t *, void *context) {
    greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint8_t *area = borrow(context);
    Instruction instruction;
    int done = 0;
    while (!(area && done) && decode((const uint8_t *)gregs[REG_RIP], gregs, &instruction) && execute(&instruction)) {
        gregs[REG_RIP] += instruction.length;
        done = 1; /* What follows is often one of AMX too, and saves a trap. */
    }
    if (area && done) give_back(area);
    if (!done) signal(number, SIG_DFL); /* The instruction traps again, and that ends the process. */
}

int amx_install(void) {
    struct sigaction action = {0};
    unsigned size, flags, unused;
    __cpuid_count(13, TILE_CONFIGURATION, size, configuration_at, flags, unused);
    __cpuid_count(13, TILE_DATA, size, data_at, flags, unused);
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGILL, &action, NULL);
}
