/* buffers.c: several buffers of a fused call, seen as the concatenation of their bytes. */
#include "npci_comm.h"

int64_t npci_buffers_count(const npc_buf *buffers, int count) {
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        total += buffers[i].count;
    return total;
}

npci_cursor npci_cursor_of(const npc_buf *buffers, int count, size_t item) {
    npci_cursor cursor = {.buffers = buffers, .count = count, .item = item};
    return cursor;
}

/* Positions are asked for almost in order, so the cursor walks from where it is. */
unsigned char *npci_cursor_at(npci_cursor *cursor, int64_t position, int64_t *bytes) {
    int64_t item = (int64_t)cursor->item;
    while (position < cursor->start)
        cursor->start -= cursor->buffers[--cursor->index].count * item;
    while (position >= cursor->start + cursor->buffers[cursor->index].count * item)
        cursor->start += cursor->buffers[cursor->index++].count * item;
    int64_t left = cursor->start + cursor->buffers[cursor->index].count * item - position;
    if (*bytes > left)
        *bytes = left;
    return (unsigned char *)cursor->buffers[cursor->index].data + (position - cursor->start);
}

void npci_cursor_stage(npci_cursor *cursor, const npci_call *call, int64_t position, int64_t bytes, void *to) {
    while (bytes > 0) {
        int64_t piece = bytes;
        const unsigned char *from = npci_cursor_at(cursor, position, &piece);
        npci_stage_copy(call, to, from, piece);
        to = (unsigned char *)to + piece;
        position += piece;
        bytes -= piece;
    }
}

void npci_cursor_write(npci_cursor *cursor, int64_t position, int64_t bytes, const void *from, bool stream) {
    while (bytes > 0) {
        int64_t piece = bytes;
        unsigned char *to = npci_cursor_at(cursor, position, &piece);
        npci_result_copy(to, from, piece, stream);
        from = (const unsigned char *)from + piece;
        position += piece;
        bytes -= piece;
    }
}
