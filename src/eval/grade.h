/* grade.h - is an answer right? Without a judge: by the words in it. */
#ifndef IS_EVAL_GRADE_H
#define IS_EVAL_GRADE_H

#include "eval/quiz.h"

typedef struct grader grader;
is_status grader_new(grader **out); /* E_NOMEM */
void grader_free(grader *g);        /* NULL is allowed */

typedef struct grade {
    /* The words of the right answer stand together in it, and those of no wrong choice before them:
     * small letters, stems; punctuation parts words; 3 is three. */
    bool right;
    double f1; /* LoCoMo's: 0 to 1, over stems without articles; the best of the right answers */
} grade;
/* E_NOMEM. The answer need not be UTF-8. */
is_status grade_answer(grader *g, const quiz_question *q, const char *answer, grade *out);

#endif
